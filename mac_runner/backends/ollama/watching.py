"""A request that takes long, and a server that may have gone meanwhile.

Nobody can say beforehand how long a reply takes: Ollama has requests wait in line, and a laptop is slow. So a server
that hangs is not told by the time it takes, but by its saying nothing to anybody any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from mac_runner.errors import TransientBackendError
from mac_runner.limits import OLLAMA_ANSWER_S_MAX, OLLAMA_LOOK_INTERVAL_S

T = TypeVar("T")


async def watched(asking: Coroutine[Any, Any, T], is_there: Callable[[], Awaitable[bool]], *, host: str) -> T:
    """What `asking` comes to. Raises TransientBackendError once the server says nothing to anybody."""
    task = asyncio.create_task(asking)
    task.add_done_callback(_taken_note_of)
    try:
        while not (await asyncio.wait([task], timeout=OLLAMA_LOOK_INTERVAL_S))[0]:
            if not await is_there() and not task.done():
                raise TransientBackendError(f"Ollama at {host} hangs: it answers nobody", is_unreachable=True)
        return task.result()
    finally:
        if task.cancel():
            await asyncio.wait([task], timeout=OLLAMA_ANSWER_S_MAX)


def _taken_note_of(task: asyncio.Task[Any]) -> None:
    """A fault that comes when nobody waits any more is no fault of the program: asyncio would report it as one."""
    if not task.cancelled():
        task.exception()
