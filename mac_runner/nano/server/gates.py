"""What a request passes before its path is looked up: the key, then the size of its body. ASGI middleware."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.server.body_budget import BodyBudget, body_too_large
from mac_runner.nano.server.keys import Key
from mac_runner.nano.server.limits import BODY_BYTES_MAX
from mac_runner.nano.server.refusal_answers import refusal_answer
from mac_runner.nano.server.refusals import Refusal, RefusedError

_OPEN_PATHS: Final = ("/health", "/metrics")
"""Probes and scrapers bring no key, and learn nothing about requests here."""
_ADMIN_PREFIX: Final = "/admin/"
"""These paths ask for a key of their own."""


class KeyGate:
    """Refuses requests without the key, whatever their path and method; a path added later is guarded, too."""

    def __init__(self, app: ASGIApp, key: Key) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401 without reading its body."""
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS and not scope["path"].startswith(_ADMIN_PREFIX):
            try:
                self._key.require(Headers(scope=scope))
            except RefusedError as error:
                await refusal_answer(scope, error.refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyGate:
    """Refuses a body that declares too many bytes, and counts what arrives of the others against the budget."""

    def __init__(self, app: ASGIApp, budget: BodyBudget) -> None:
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a `receive` that raises RefusedError where the budget ends."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            require_length_within_bounds(Headers(scope=scope))
        except RefusedError as error:
            await refusal_answer(scope, error.refusal)(scope, receive, send)
            return
        share = self._budget.share()

        async def counted() -> Message:
            message = await receive()
            share.grow(len(message.get("body", b"")))
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            share.release()


def require_length_within_bounds(headers: Headers) -> None:
    """Raises RefusedError for a declared length that is too large, no number, or in doubt."""
    length = headers.get("content-length")
    if length is None:
        return
    if "transfer-encoding" in headers:
        message = "Content-Length and Transfer-Encoding contradict each other: send one of them"
        raise RefusedError(Refusal(status=400, message=message, hangs_up=True))
    if not (length.isascii() and length.isdigit()):
        raise RefusedError(Refusal(status=400, message="Content-Length is not a number of bytes", hangs_up=True))
    digits = length.lstrip("0")
    if len(digits) > len(str(BODY_BYTES_MAX)) or int(digits or "0") > BODY_BYTES_MAX:
        raise body_too_large()
