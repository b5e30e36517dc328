"""What a request passes before its path is looked up: its key, then the size of its body. ASGI middleware.

All bodies together have a budget of memory. A request holds its share until it is answered, because its prompt stays
in memory while it waits for the engine. The first BODY_BYTES_FREE of each body do not count, so ordinary requests are
served while long ones use up the budget.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.server.answers import RETRY_AFTER_S, Refusal, RefusedError, refusal_answer

BODY_BYTES_MAX = 8 << 20
BODIES_BYTES_MAX = 256 << 20
"""The memory for the bodies of all requests together, without the first BODY_BYTES_FREE of each."""
BODY_BYTES_FREE = 64 << 10
_OPEN_PATHS: Final = ("/health", "/metrics")
"""Probes and scrapers have no key; these paths reveal nothing about requests."""
_ADMIN_PREFIX: Final = "/admin/"
"""These paths have a key of their own."""
_SCHEME: Final = "bearer"
_ENCODING: Final = "latin-1"
"""The encoding of header values: each byte is a character."""


class Key:
    """A key that clients bring as `Authorization: Bearer KEY`. Only its digest is kept, so nothing can show it."""

    __slots__ = ("_digest",)

    def __init__(self, text: str) -> None:
        self._digest = sha256(text.encode()).digest()

    def require(self, headers: Headers) -> None:
        """Raise RefusedError unless the headers carry the key. The comparison takes constant time."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Digests have one length, so the time reveals nothing about the length of the key.
        is_right = hmac.compare_digest(sha256(token.strip().encode(_ENCODING)).digest(), self._digest)
        if scheme.lower() != _SCHEME or not is_right:
            message = "the key is missing or wrong: send it as Authorization: Bearer KEY"
            raise RefusedError(
                Refusal(status=401, message=message, kind="authentication_error", code="invalid_api_key")
            )


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


class BodyBudget:
    """The memory for all bodies. It counts bytes that have arrived, not bytes that a header declares."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def share(self) -> BodyShare:
        """The share of a new request, which holds nothing yet."""
        return BodyShare(self)


class BodyShare:
    """What one request holds of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size_bytes = 0
        self._held_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Count bytes that have arrived. Raises RefusedError where they are too many: of this body, or of all."""
        size_bytes = self._size_bytes + num_bytes
        if size_bytes > BODY_BYTES_MAX:
            raise body_too_large()
        held_bytes = max(size_bytes - BODY_BYTES_FREE, 0)
        more_bytes = held_bytes - self._held_bytes
        if more_bytes and self._budget.held_bytes + more_bytes > self._budget.bytes_max:
            raise RefusedError(
                Refusal(
                    status=503,
                    message="server busy: the bodies of all requests together take up the memory kept for them",
                    kind="server_error",
                    code="server_busy",
                    retry_after_s=RETRY_AFTER_S,
                )
            )
        self._size_bytes, self._held_bytes = size_bytes, held_bytes
        self._budget.held_bytes += more_bytes

    def release(self) -> None:
        """Give everything back."""
        self._budget.held_bytes -= self._held_bytes
        self._size_bytes = self._held_bytes = 0


class BodyGate:
    """Refuses a body that declares too many bytes, and counts the arriving bytes of others against the budget."""

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
    """Raise RefusedError for a declared length that is too large, not a number, or contradicted."""
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


def body_too_large() -> RefusedError:
    """The refusal of a body beyond BODY_BYTES_MAX, declared or received."""
    return RefusedError(Refusal(status=413, message=f"the body has more than {BODY_BYTES_MAX} bytes"))
