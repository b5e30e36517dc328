"""What the server answers: JSON in one piece, streams that end when the client leaves, and refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing
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
