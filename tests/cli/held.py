"""`mac-run` whose scripted players give so many replies, and no more until the run is asked to stop.

    python -m tests.cli.held 40 FILE

So a test finds a run at work for as long as it looks, whichever of the two the machine lets go first.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mac_runner.backends.testing import ScriptedBackend
from mac_runner.cli import main
from mac_runner.scheduler import runner, state
from mac_runner.types import Reply, Request


@contextmanager
def hold(replies: int) -> Iterator[None]:
    """Inside the block each request of this process after so many waits until its run stops."""
    generate, stopped, asked = ScriptedBackend.generate, asyncio.Event(), 0

    async def held(self: ScriptedBackend, request: Request) -> Reply:
        nonlocal asked
        asked += 1
        if asked > replies:
            await stopped.wait()
        return await generate(self, request)

    def stop() -> state.Stop:
        stopped.set()
        return state.Stop()

    places = ((ScriptedBackend, "generate", held, generate), (runner, "Stop", stop, state.Stop))
    for owner, name, new, _ in places:
        setattr(owner, name, new)
    try:
        yield
    finally:
        for owner, name, _, old in places:
            setattr(owner, name, old)


if __name__ == "__main__":
    with hold(int(sys.argv.pop(1))):
        main()
