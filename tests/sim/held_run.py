"""`mac-run` whose engine is asked for so many replies, and for no more until a file is there.

    python -m tests.sim.held_run MODULE:CLASS COUNT FILE ARGUMENT...

CLASS is that of the backend. So a run is under way for as long as a test needs it: it can neither be over before the
test disturbs it, nor get far meanwhile.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from mac_runner.cli import main
from mac_runner.types import Reply, Request
from tests.patience import until

VLLM = "mac_runner.backends.vllm.backend:VllmBackend"
FLEET = "mac_runner.backends.fleet.backend:FleetBackend"


def held(backend: str, count: int, gate: Path) -> tuple[str, ...]:
    """The program in place of `mac-run`."""
    return (sys.executable, "-m", "tests.sim.held_run", backend, str(count), str(gate))


def hold(backend: str, count: int, gate: Path) -> None:
    """Hold the requests of this process."""
    module, name = backend.split(":")
    kind: Any = getattr(import_module(module), name)
    ask, numbers = kind.generate, iter(range(count))

    async def generate(self: Any, request: Request) -> Reply:
        if next(numbers, None) is None:
            await until(gate.exists, "the file that lets it go on")
        reply: Reply = await ask(self, request)
        return reply

    kind.generate = generate


if __name__ == "__main__":
    hold(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    sys.argv[1:4] = []
    main()
