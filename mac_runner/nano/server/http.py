"""What a request passes (its key, the size of its body, the check of its fields), and what the server answers.

All bodies together have a budget of memory. A request holds its share until it is answered, because its prompt stays
in memory while it waits for the engine. The first BODY_BYTES_FREE of each body do not count, so ordinary requests are
served while long ones use up the budget. Every refusal is a `RefusedError`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import aclosing
from hashlib import sha256
from itertools import islice
from typing import Annotated, Final, TypeAlias, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.errors import (
    ConfigError,
    EngineStoppedError,
    MissingTensorError,
    ModelError,
    NanoError,
    NonFiniteLogitsError,
    NonFiniteWeightError,
    PromptTooLongError,
    QueueFullError,
    ReplicaLostError,
    RequestError,
    StaleVersionError,
    UnexpectedTensorError,
    UpdateInProgressError,
    WeightUpdateError,
    WrongDtypeError,
    WrongShapeError,
)

SERVER_ERROR: Final = "server_error"
_INVALID: Final = "invalid_request_error"
CLIENT_GONE_STATUS: Final = 499
"""Never sent; proxies count a client that left under this status."""
QUOTED_CHARS_MAX = 300
"""The most characters of a client's own text that an error quotes."""
LOT = 64
"""The most items of a long list that are encoded at once: the encoder lets no other thread run meanwhile."""
_SHORT = 256
RETRY_AFTER_S = 1
"""What a client should wait when the queue is full."""
_UNAUTHORIZED: Final = 401
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
# An iterator is written as a list.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=list)
# Those that JSON lets stand in a text.
_LINE_ENDS = {end: json.dumps(end)[1:-1] for end in "\x85\u2028\u2029"}

JsonObject = dict[str, object]
Result = TypeVar("Result")


def encoded(content: object) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which UTF-8 cannot encode, becomes a question mark.

    It is one line for those, too, who end lines where Unicode does, as Ollama's client does.
    """
    text = _ENCODER.encode(content)
    for end, escaped in _LINE_ENDS.items():
        text = text.replace(end, escaped)
    return text.encode("utf-8", "replace")


def answer(content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(encoded(content), status_code=status, headers=headers, media_type="application/json")


async def long_answer(write: Callable[[], object]) -> Response:
    """An answer in one piece that takes long to write: on a thread, so that others have their turn."""
    content = await asyncio.to_thread(lambda: b"".join(encoded_in_lots(write())))
    return Response(content, media_type="application/json")


def encoded_in_lots(content: object, *, depth: int = 1) -> Iterator[bytes]:
    """What `encoded` makes of a value, piece by piece: long lists in lots, as well as those in items of short ones.

    What an iterator yields is dropped lot by lot: a collector of garbage would stop all threads to look through it.
    """
    if isinstance(content, dict):
        opening = "{"
        for name, value in content.items():
            yield opening.encode() + encoded(name) + b":"
            yield from encoded_in_lots(value, depth=depth)
            opening = ","
        yield b"}" if content else b"{}"
    elif isinstance(content, list) and depth and 0 < len(content) <= _SHORT:
        for index, item in enumerate(content):
            yield b"," if index else b"["
            yield from encoded_in_lots(item, depth=depth - 1)
        yield b"]"
    elif isinstance(content, list | Iterator):
        items, before = iter(content), b"["
        while lot := list(islice(items, LOT)):
            yield before + encoded(lot)[1:-1]
            before = b","
        yield b"]" if before == b"," else b"[]"
    else:
        yield encoded(content)


class Stream(Response):
    """An answer piece by piece. When the client leaves, or the server stops, `pieces` is closed."""

    def __init__(self, pieces: AsyncGenerator[bytes], media_type: str) -> None:
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._pieces):
            try:
                await unless_gone(receive, self._send(send))
            except ClientGoneError:
                return

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`; when the client leaves first, `work` is cancelled and ClientGoneError is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(receive))
            result = await work
            watch.cancel()
    except ExceptionGroup as met:
        # There is one, unless both happened at once; then the client is gone, whatever became of the work.
        raise met.exceptions[0] from None
    return result


async def _watch(receive: Receive) -> None:
    """Raise when the client leaves; its body has been read, so nothing else can arrive."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError("the client left")


class RefusedError(NanoError):
    """Why a request is not served. `kind` and `code` are OpenAI's words, `field` is the part of the request at fault.

    With `hangs_up` the connection is closed after the answer: what follows on it cannot be separated from the body.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = _INVALID,
        code: str | None = None,
        *,
        field: str | None = None,
        retry_after_s: int | None = None,
        hangs_up: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.field = field
        self.retry_after_s = retry_after_s
        self.hangs_up = hangs_up


class ClientGoneError(NanoError):
    """The client has left."""


def invalid(message: str, field: str | None = None) -> RefusedError:
    """The refusal of a request that is wrong, or asks for what the server does not have."""
    return RefusedError(400, message, field=field)


_MISFIT = (400, _INVALID, "weights_mismatch")
_REFUSALS: dict[type[Exception], tuple[int, str, str | None]] = {
    ClientGoneError: (CLIENT_GONE_STATUS, "client_gone", None),
    ReplicaLostError: (503, SERVER_ERROR, "replica_lost"),
    QueueFullError: (429, "rate_limit_error", "rate_limit_exceeded"),
    PromptTooLongError: (400, _INVALID, "context_length_exceeded"),
    NonFiniteLogitsError: (500, SERVER_ERROR, "non_finite_logits"),
    EngineStoppedError: (503, SERVER_ERROR, "engine_stopped"),
    StaleVersionError: (409, _INVALID, "stale_version"),
    UpdateInProgressError: (409, _INVALID, "update_in_progress"),
    WeightUpdateError: (502, SERVER_ERROR, "broadcast_failed"),
    MissingTensorError: _MISFIT,
    UnexpectedTensorError: _MISFIT,
    WrongShapeError: _MISFIT,
    WrongDtypeError: _MISFIT,
    NonFiniteWeightError: _MISFIT,
    RequestError: (400, _INVALID, None),
    ModelError: (400, _INVALID, None),
    ConfigError: (400, _INVALID, None),
    NanoError: (500, SERVER_ERROR, None),
}
"""The status, kind and code of each error; of a class that is not here, those of its base."""


def refusal_of(error: NanoError) -> RefusedError:
    """What a client gets for an error."""
    if isinstance(error, RefusedError):
        return error
    status, kind, code = next(_REFUSALS[each] for each in type(error).__mro__ if each in _REFUSALS)
    message = shortened(str(error))
    if isinstance(error, PromptTooLongError):
        message = f"the request exceeds the context: {message}"
    wait_s = RETRY_AFTER_S if isinstance(error, QueueFullError) else None
    return RefusedError(status, message, kind, code, retry_after_s=wait_s)


def shortened(message: str) -> str:
    return message if len(message) <= QUOTED_CHARS_MAX else f"{message[: QUOTED_CHARS_MAX - 1]}…"


def openai_error(refusal: RefusedError) -> JsonObject:
    error = {"message": refusal.message, "type": refusal.kind, "param": refusal.field, "code": refusal.code}
    return {"error": error}


def ollama_error(refusal: RefusedError) -> JsonObject:
    return {"error": refusal.message}


def refusal_answer(scope: Scope, refusal: RefusedError) -> Response:
    """The answer to the request in `scope`, in the words of the interface that its path belongs to."""
    write = ollama_error if scope["path"].startswith("/api/") else openai_error
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if refusal.status == _UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    # A client that waits for leave to send its body may send it or not, so the start of its next request is unknown.
    if refusal.hangs_up or "expect" in Headers(scope=scope):
        headers["Connection"] = "close"
    return answer(write(refusal), status=refusal.status, headers=headers)


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
