"""What the tests of executors share: jobs of stubs, a terminal that keeps what was said, a clock without waits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from mac_runner.executors.testing import Job, Terminal

STUB = Path(__file__).with_name("stub.py")


def stub_job(directory: Path, *behaviours: str, workers: int = 1, gpus: int = 0, shared: bool = True) -> Job:
    """A job of workers that behave so; the last behaviour is for all later starts."""
    return Job(
        name="stub",
        directory=directory,
        argv=(sys.executable, "-S", str(STUB), str(directory), *behaviours),
        working_directory=directory.parent,
        workers=workers,
        gpus=gpus,
        is_assumed_shared=shared,
    )


def starts(directory: Path) -> list[int]:
    """The process numbers of all starts so far."""
    found = [directory / f"start-{number}" for number in range(len(list(directory.glob("start-*"))))]
    return [int(text) for path in found if (text := path.read_text())]


@dataclass
class Listener:
    """A user who stops the job as soon as a condition holds."""

    stops_when: Callable[[], bool] = lambda: False
    said: list[str] = field(default_factory=list)

    @property
    def terminal(self) -> Terminal:
        return Terminal(say=self.said.append, stopping=self._stopping)

    @contextmanager
    def _stopping(self, stop: asyncio.Event) -> Iterator[None]:
        async def watch() -> None:
            while not self.stops_when():  # noqa: ASYNC110 - it is about files
                await asyncio.sleep(0.01)
            stop.set()

        watching = asyncio.get_running_loop().create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


def running(numbers: Sequence[int]) -> list[int]:
    """Those of the processes that have not ended."""
    return [number for number in numbers if psutil.pid_exists(number) and _is_running(number)]


def _is_running(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
