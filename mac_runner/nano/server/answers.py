"""What the server answers: JSON in one piece, streams that end when the client leaves, and refusals.

| what happened | status |
|---|---|
| a body that is not JSON, a field that is unknown or out of range, a constraint that cannot be followed | 400 |
| a prompt that does not fit the context | 400, `context_length_exceeded` |
| a wrong key, or none where one is needed | 401 |
| a path or a model that is not here | 404 |
| a body that does not arrive, or is too large | 408, 413 |
| the bodies of all requests together take up the memory kept for them | 503, `server_busy`, with Retry-After |
| as many requests waiting as may wait | 429 with Retry-After |
| weights that the engine cannot take | 400 `weights_mismatch`, 409 `stale_version` or `update_in_progress`, |
| | 502 `broadcast_failed` |
| the model computed NaN or an infinity | 500 |
| an engine that has stopped, or gave the request up | 503 |
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

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
    RequestError,
    StaleVersionError,
    UnexpectedTensorError,
    UpdateInProgressError,
    WeightUpdateError,
    WrongDtypeError,
    WrongShapeError,
)

SSE: Final = "text/event-stream; charset=utf-8"
NDJSON: Final = "application/x-ndjson"
INTERNAL_ERROR_STATUS: Final = 500
CLIENT_GONE_STATUS: Final = 499
"""Never sent; proxies count a client that left under this status."""
QUOTED_CHARS_MAX = 300
"""The most characters of a client's own text that an error quotes."""
LOT = 64
"""The most items of a long list that are encoded at once: the encoder lets no other thread run meanwhile."""
_SHORT = 256
RETRY_AFTER_S = 1
"""What a client should wait when the queue is full."""
_OLLAMA_PREFIX: Final = "/api/"
_UNAUTHORIZED: Final = 401
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
    """An answer in one piece."""
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
        """Send the answer."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not served. `kind` and `code` are OpenAI's words, `field` is the part of the request at fault.

    With `hangs_up` the connection is closed after the answer: what follows on it cannot be separated from the body.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    field: str | None = None
    retry_after_s: int | None = None
    hangs_up: bool = False


class RefusedError(NanoError):
    """A request that the server does not pass on to the engine."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class ClientGoneError(NanoError):
    """The client has left."""


def refusal_of(error: NanoError) -> Refusal:
    """The refusal that a client gets for an error."""
    message = shortened(str(error))
    match error:
        case RefusedError():
            return error.refusal
        case ClientGoneError():
            return Refusal(status=CLIENT_GONE_STATUS, message=message, kind="client_gone")
        case QueueFullError():
            return Refusal(
                status=429,
                message=message,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=RETRY_AFTER_S,
            )
        case PromptTooLongError():
            message = f"the request exceeds the context: {message}"
            return Refusal(status=400, message=message, code="context_length_exceeded")
        case NonFiniteLogitsError():
            return Refusal(status=500, message=message, kind="server_error", code="non_finite_logits")
        case EngineStoppedError():
            return Refusal(status=503, message=message, kind="server_error", code="engine_stopped")
        case StaleVersionError():
            return Refusal(status=409, message=message, code="stale_version")
        case UpdateInProgressError():
            return Refusal(status=409, message=message, code="update_in_progress")
        case WeightUpdateError():
            return Refusal(status=502, message=message, kind="server_error", code="broadcast_failed")
        case MissingTensorError() | UnexpectedTensorError() | WrongShapeError():
            return Refusal(status=400, message=message, code="weights_mismatch")
        case WrongDtypeError() | NonFiniteWeightError():
            return Refusal(status=400, message=message, code="weights_mismatch")
        case RequestError() | ModelError() | ConfigError():
            return Refusal(status=400, message=message)
        case _:
            return Refusal(status=500, message=message, kind="server_error")


def shortened(message: str) -> str:
    """A message, cut to QUOTED_CHARS_MAX characters."""
    return message if len(message) <= QUOTED_CHARS_MAX else f"{message[: QUOTED_CHARS_MAX - 1]}…"


def unknown_model(name: str) -> RefusedError:
    """The refusal of a model that is not here, in the words that clients of Ollama look for."""
    return RefusedError(
        Refusal(
            status=404,
            message=f"model {name[:QUOTED_CHARS_MAX]!r} not found",
            kind="not_found_error",
            code="model_not_found",
            field="model",
        )
    )


def invalid(message: str, field: str | None = None) -> RefusedError:
    """The refusal of a request that is wrong, or asks for what the server does not have."""
    return RefusedError(Refusal(status=400, message=message, field=field))


def given_up(reason: str) -> RefusedError:
    """The refusal of a request that the engine ended before it was finished."""
    message = f"the request was ended before it was finished: {reason}"
    return RefusedError(Refusal(status=503, message=message, kind="server_error", code="aborted"))


def openai_error(refusal: Refusal) -> JsonObject:
    """An error as OpenAI's clients read it."""
    error = {"message": refusal.message, "type": refusal.kind, "param": refusal.field, "code": refusal.code}
    return {"error": error}


def ollama_error(refusal: Refusal) -> JsonObject:
    """An error as Ollama's clients read it."""
    return {"error": refusal.message}


def refusal_answer(scope: Scope, refusal: Refusal) -> Response:
    """The answer to the request in `scope`, in the words of the interface that its path belongs to."""
    write = ollama_error if scope["path"].startswith(_OLLAMA_PREFIX) else openai_error
    return answer(write(refusal), status=refusal.status, headers=_headers(scope, refusal))


def _headers(scope: Scope, refusal: Refusal) -> dict[str, str]:
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if refusal.status == _UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    # A client that waits for leave to send its body may send it or not, so the start of its next request is unknown.
    if refusal.hangs_up or "expect" in Headers(scope=scope):
        headers["Connection"] = "close"
    return headers
