"""What a request passes: its key, the size of its body, and the check of its fields. Every refusal is a RefusedError.

All bodies together have a budget of memory. A request holds its share until it is answered, because its prompt stays
in memory while it waits for the engine. The first BODY_BYTES_FREE of each body do not count, so ordinary requests are
served while long ones use up the budget.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from concurrent.futures import Executor
from hashlib import sha256
from typing import Annotated, Final, TypeAlias, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.server.answers import (
    QUOTED_CHARS_MAX,
    RETRY_AFTER_S,
    SERVER_ERROR,
    ClientGoneError,
    RefusedError,
    invalid,
    refusal_answer,
)

BODY_BYTES_MAX = 8 << 20
BODIES_BYTES_MAX = 256 << 20
"""The memory for the bodies of all requests together, without the first BODY_BYTES_FREE of each."""
BODY_BYTES_FREE = 64 << 10
_OPEN_PATHS: Final = ("/health", "/metrics")
"""Probes and scrapers have no key; these paths reveal nothing about requests."""
_ADMIN_PREFIX: Final = "/admin/"
"""These paths have a key of their own."""
BODY_S_MAX = 60.0
"""How long a body may take to arrive."""
BODY_BYTES_AT_ONCE_MAX = 64 << 10
"""A longer body is parsed on a thread, one at a time."""
JSON_PARTS_MAX = 100_000
"""Arrays and objects in one body. Each takes some hundred bytes to parse, so 8 MiB of them would take 1.4 GB."""
MESSAGES_MAX = 10_000
TOP_LOGPROBS_MAX = 20
PROBLEMS_NAMED_MAX = 3
PROBLEMS_LISTED_MAX = 1_000
"""More are only counted: it takes long to list millions."""

# Strings are skipped whole; the last one may lack its end. Possessive, so each byte is looked at once.
_STRING_OR_PART = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)
_QUOTE = ord('"')
_NO_JSON = (b"NaN", b"Infinity")


class Key:
    """A key that clients bring as `Authorization: Bearer KEY`. Only its digest is kept, so nothing can show it."""

    __slots__ = ("_digest",)

    def __init__(self, text: str) -> None:
        self._digest = sha256(text.encode()).digest()

    def require(self, headers: Headers) -> None:
        """Raise RefusedError unless the headers carry the key. The comparison takes constant time."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Digests have one length, so the time reveals nothing about the length of the key. Each byte of a header's
        # value is a character of latin-1.
        is_right = hmac.compare_digest(sha256(token.strip().encode("latin-1")).digest(), self._digest)
        if scheme.lower() != "bearer" or not is_right:
            message = "the key is missing or wrong: send it as Authorization: Bearer KEY"
            raise RefusedError(401, message, "authentication_error", "invalid_api_key")


class BodyBudget:
    """The memory for all bodies. It counts bytes that have arrived, not bytes that a header declares."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0


class BodyShare:
    """What one request holds of the budget; nothing at first."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._size_bytes = 0
        self._held_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """Count bytes that have arrived. Raises RefusedError where they are too many: of this body, or of all."""
        size_bytes = self._size_bytes + num_bytes
        if size_bytes > BODY_BYTES_MAX:
            raise _too_large()
        held_bytes = max(size_bytes - BODY_BYTES_FREE, 0)
        more_bytes = held_bytes - self._held_bytes
        if more_bytes and self._budget.held_bytes + more_bytes > self._budget.bytes_max:
            message = "server busy: the bodies of all requests together take up the memory kept for them"
            raise RefusedError(503, message, SERVER_ERROR, "server_busy", retry_after_s=RETRY_AFTER_S)
        self._size_bytes, self._held_bytes = size_bytes, held_bytes
        self._budget.held_bytes += more_bytes

    def release(self) -> None:
        self._budget.held_bytes -= self._held_bytes
        self._size_bytes = self._held_bytes = 0


class Gate:
    """ASGI middleware that refuses a request without the key, whatever its path and method, or of a declared length out
    of bounds, before a byte of its body is read. It counts the arriving bytes of all others against the budget.
    """

    def __init__(self, app: ASGIApp, key: Key | None, budget: BodyBudget) -> None:
        self._app = app
        self._key = key
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with a `receive` that raises RefusedError where the budget ends."""
        headers, path = Headers(scope=scope), scope["path"]
        try:
            if self._key is not None and path not in _OPEN_PATHS and not path.startswith(_ADMIN_PREFIX):
                self._key.require(headers)
            require_length_within_bounds(headers)
        except RefusedError as error:
            await refusal_answer(scope, error)(scope, receive, send)
            return
        share = BodyShare(self._budget)

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
        raise RefusedError(400, message, hangs_up=True)
    if not (length.isascii() and length.isdigit()):
        raise RefusedError(400, "Content-Length is not a number of bytes", hangs_up=True)
    digits = length.lstrip("0")
    if len(digits) > len(str(BODY_BYTES_MAX)) or int(digits or "0") > BODY_BYTES_MAX:
        raise _too_large()


def _too_large() -> RefusedError:
    return RefusedError(413, f"the body has more than {BODY_BYTES_MAX} bytes")


Item = TypeVar("Item")
Many: TypeAlias = Annotated[tuple[Item, ...], Field(fail_fast=True)]
"""An array in a request. The first wrong item ends its check: there may be millions."""


class Body(BaseModel):
    """A JSON object from a client. Types are strict; an unknown field would be dropped, so it is refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


Parsed = TypeVar("Parsed", bound=Body)


async def read_request(kind: type[Parsed], request: Request, thread: Executor) -> Parsed:
    """The body of a request, checked. Its content type does not matter, because many clients send a wrong one.

    Long bodies are parsed on `thread`, one after the other: while it is parsed, JSON takes many times its bytes.
    """
    content = await read_bytes(request)
    if len(content) <= BODY_BYTES_AT_ONCE_MAX:
        return parse_body(kind, content)
    return await asyncio.get_running_loop().run_in_executor(thread, parse_body, kind, content)


async def read_bytes(request: Request) -> bytes:
    """The body of a request. Raises RefusedError when it is too large or does not arrive."""
    # One buffer: chunks of one byte would take forty times as much as objects of their own.
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in request.stream():
                content += chunk
    except TimeoutError:
        raise RefusedError(408, f"no whole body within {BODY_S_MAX:.0f} s", hangs_up=True) from None
    except ClientDisconnect:
        raise ClientGoneError("the client left in the middle of its request") from None
    return bytes(content)


def parse_body(kind: type[Parsed], content: bytes) -> Parsed:
    """The request in `content`. Raises RefusedError, which names the wrong fields."""
    _require_few_parts(content)
    try:
        parsed = kind.model_validate_json(content)
    except ValidationError as error:
        raise _refused(error, content) from None
    if any(name in content for name in _NO_JSON):
        # Where a field may be any JSON, the validator takes them for numbers.
        try:
            from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise invalid(f"the body is not JSON: {error}") from None
    return parsed


def require_absent(body: Body, *names: str) -> None:
    """Refuse fields of the protocol that this server does not support, unless they ask for nothing."""
    for name in names:
        if getattr(body, name):
            raise invalid(f"{name} is not supported by this server: leave it out", name)


def _require_few_parts(content: bytes) -> None:
    """Raise RefusedError for more than JSON_PARTS_MAX arrays and objects. A short body has room for few."""
    if len(content) <= BODY_BYTES_AT_ONCE_MAX or content.count(b"[") + content.count(b"{") <= JSON_PARTS_MAX:
        return
    num_parts = 0
    for match in _STRING_OR_PART.finditer(content):
        num_parts += content[match.start()] != _QUOTE
        if num_parts > JSON_PARTS_MAX:
            raise invalid(f"the body has more than {JSON_PARTS_MAX} arrays and objects")


def _refused(error: ValidationError, content: bytes) -> RefusedError:
    if error.error_count() > PROBLEMS_LISTED_MAX:
        return invalid(f"{error.error_count()} fields are wrong or unknown")
    try:
        sent = from_json(content)
    except ValueError:
        sent = None
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    places = [_place(problem, sent)[:QUOTED_CHARS_MAX] for problem in problems]
    messages = [str(problem["msg"])[:QUOTED_CHARS_MAX] for problem in problems]
    # A field that may be of several kinds has one problem for each, at times with the same message.
    named = list(
        dict.fromkeys(f"{place}: {text}" if place else text for place, text in zip(places, messages, strict=True))
    )
    more = f" (and {len(named) - PROBLEMS_NAMED_MAX} more)" if len(named) > PROBLEMS_NAMED_MAX else ""
    return invalid("; ".join(named[:PROBLEMS_NAMED_MAX]) + more, places[0] or None)


def _place(problem: ErrorDetails, sent: object) -> str:
    """Where in the request: the validator's path without the names of the kinds that it tried on the way."""
    steps = list[str]()
    for part in problem["loc"]:
        is_there = part in sent if isinstance(sent, dict) else isinstance(sent, list) and isinstance(part, int)
        if is_there or (problem["type"] == "missing" and part == problem["loc"][-1]):
            steps.append(str(part))
            sent = sent[part] if is_there else None  # type: ignore[index]
    return ".".join(steps)
