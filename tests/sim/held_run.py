"""`mac-run` whose engine is asked for so many replies, and for no more until the test lets it go on.

    python -m tests.sim.held_run COUNT GATE MODULE:CLASS ARGUMENT...

GATE is a file, whose coming lets the run go on, or `stop`: then it goes on once it is asked to stop. CLASS is that of
the backend. So a run is under way for as long as a test needs it, whichever of the two the machine lets go first.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mac_runner.cli import main
from mac_runner.scheduler import runner, state
from mac_runner.types import Reply, Request
from tests.patience import until

SCRIPTED = "mac_runner.backends.scripted:ScriptedBackend"
VLLM = "mac_runner.backends.vllm.backend:VllmBackend"
FLEET = "mac_runner.backends.fleet.backend:FleetBackend"
STOP = "stop"


def held(count: int, gate: Path | str = STOP, backend: str = SCRIPTED) -> tuple[str, ...]:
    """The program in place of `mac-run`."""
    return (sys.executable, "-m", "tests.sim.held_run", str(count), str(gate), backend)


@contextmanager
def hold(count: int, gate: Path | str = STOP, backend: str = SCRIPTED) -> Iterator[None]:
    """Hold the requests of this process inside the block."""
    module, name = backend.split(":")
    kind: Any = getattr(import_module(module), name)
    ask, stopped, left = kind.generate, asyncio.Event(), count

    async def generate(self: Any, request: Request) -> Reply:
        nonlocal left
        is_counted = left > 0
        left -= is_counted
        if not is_counted:
            await (stopped.wait() if gate == STOP else until(Path(gate).exists, "the file that lets it go on"))
        try:
            reply: Reply = await ask(self, request)
        except BaseException:
            left += is_counted  # It gave no reply, and is asked again.
            raise
        return reply

    def stop() -> state.Stop:
        stopped.set()
        return state.Stop()

    with patch.object(kind, "generate", generate), patch.object(runner, "Stop", stop):
        yield


if __name__ == "__main__":
    count, gate, backend = sys.argv[1:4]
    sys.argv[1:4] = []
    with hold(int(count), gate, backend):
        main()
