"""Between ASGI and the handlers: bodies within bounds, answers as JSON, streams that end when the client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from concurrent.futures import Executor
from contextlib import aclosing
from typing import TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mac_runner.nano.server.bodies import Parsed, parse_body
from mac_runner.nano.server.limits import BODY_BYTES_AT_ONCE_MAX, BODY_S_MAX
from mac_runner.nano.server.refusals import ClientGoneError, Refusal, RefusedError

SSE = "text/event-stream; charset=utf-8"
NDJSON = "application/x-ndjson"
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)

Result = TypeVar("Result")


def encoded(content: object) -> bytes:
    """Compact JSON in UTF-8; half a surrogate pair, which UTF-8 has no bytes for, goes as a question mark."""
    return _ENCODER.encode(content).encode("utf-8", "replace")


def answer(content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in one piece."""
    return Response(encoded(content), status_code=status, headers=headers, media_type="application/json")


async def read_request(kind: type[Parsed], request: Request, thread: Executor) -> Parsed:
    """The body of a request, checked. What type it says it is does not matter: many say nothing true.

    Long bodies are parsed on `thread`, one after the other: parsed, JSON takes many times its bytes for a moment.
    """
    content = await read_bytes(request)
    if len(content) <= BODY_BYTES_AT_ONCE_MAX:
        return parse_body(kind, content)
    return await asyncio.get_running_loop().run_in_executor(thread, parse_body, kind, content)


async def read_bytes(request: Request) -> bytes:
    """The body of a request. Raises RefusedError when it is too large or does not arrive."""
    # One buffer: as an object of its own each chunk of one byte would take forty times as much.
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in request.stream():
                content += chunk
    except TimeoutError:
        message = f"no whole body within {BODY_S_MAX:.0f} s"
        raise RefusedError(Refusal(status=408, message=message, hangs_up=True)) from None
    except ClientDisconnect:
        raise ClientGoneError("the client left in the middle of its request") from None
    return bytes(content)


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result:
    """The result of `work`, which is cancelled when the client leaves first: then ClientGoneError is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_watch(receive))
            result = await work
            watch.cancel()
    except ExceptionGroup as met:
        # There is one but where both happened at once, and then the client is gone whatever became of the work.
        raise met.exceptions[0] from None
    return result


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


async def _watch(receive: Receive) -> None:
    """Raise when the client leaves; its body has been read, so nothing else can come of it."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGoneError("the client left")
