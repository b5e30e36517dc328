"""One worker, started again until the job is done.

The worker runs under the guardian of a lane (`fleet/child.py`): in a process group of its own, with its output in a
file. It ends when this process does, however that ended.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mac_runner.clock import Clock
from mac_runner.executors.base import INTERRUPTED, QUICK_S, WARNING_S, Next, next_step
from mac_runner.fleet.process import LaneProcess

PAUSE_S_MAX: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """Runs one worker. `stop` asks it to end in order: the worker gets SIGTERM, and is not started again."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    clock: Clock
    say: Callable[[str], None]
    stop: asyncio.Event

    async def keep(self) -> int | None:
        """Run the worker until it needs no other start. Returns its last status, as `LaneProcess.status`."""
        quick_ends = 0
        status: int | None = INTERRUPTED
        while not self.stop.is_set():
            started_s = self.clock.monotonic_s()
            status, how = await self._play()
            if self.stop.is_set():
                break
            quick_ends = quick_ends + 1 if self.clock.monotonic_s() - started_s < QUICK_S else 0
            match next_step(status, quick_ends):
                case Next.DONE:
                    self.say(f"{self.name} has finished")
                    break
                case Next.AGAIN:
                    pause_s = min(2.0 ** max(quick_ends - 1, 0), PAUSE_S_MAX)
                    self.say(f"{self.name}: {how}; starting it again in {pause_s:g} s")
                    await self._pause(pause_s)
                case Next.GIVEN_UP:
                    self.say(f"{self.name}: {how}, {quick_ends} times in a row; given up (log: {self.log})")
                    break
                case Next.STOP:
                    self.say(f"{self.name}: {how}; stopping all workers (log: {self.log})")
                    break
        return status

    async def _play(self) -> tuple[int | None, str]:
        """Run the worker once. Returns its status, and how it ended in words."""
        try:
            process = await LaneProcess.start(self.argv, self.environment, self.log)
        except OSError as fault:
            return None, f"it could not be started: {fault.strerror}"
        stopping = asyncio.create_task(self.stop.wait())
        ended = asyncio.create_task(process.ended())
        try:
            await asyncio.wait({stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            await process.stop(WARNING_S)
        how = await ended
        status = process.status
        has_words = status is not None and status > 0 and status != INTERRUPTED
        error = process.last_error() if has_words else None
        return status, how if error is None else f"{how}: {error}"

    async def _pause(self, pause_s: float) -> None:
        sleeping = asyncio.create_task(self.clock.sleep(pause_s))
        stopping = asyncio.create_task(self.stop.wait())
        await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sleeping, stopping):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def command_line(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as a shell takes it."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment.items()), shlex.join(argv)])
