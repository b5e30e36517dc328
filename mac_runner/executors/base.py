"""A job, what runs it, and what follows the end of one of its workers.

A job is a number of equal workers in one run directory. Each worker is `mac-run FILE --shard auto/M --out DIR`.
Every executor keeps to one table, by the exit code of a worker:

| the worker | then |
|---|---|
| ended with 0 or 1: the whole experiment is played | the job is done |
| ended with 3, or was lost: a signal, a dead machine | it is started again, unless the user stopped the job |
| did so `QUICK_ENDS_MAX` times, each within `QUICK_S` of its start | it is given up: its engine does not start |
| ended with anything else, such as 2 for bad input | the job stops: another start would end in the same way |

One worker, started again until the job is done.

The worker runs under the guardian of a lane (`fleet/child.py`): in a process group of its own, with its output in a
file. It ends when this process does, however that ended.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from mac_runner.clock import Clock
from mac_runner.errors import ConfigError
from mac_runner.plan import AutoShard
from mac_runner.printable import counted
from mac_runner.store.layout import SUBMIT
from mac_runner.store.machine import Machine, is_network

DONE: Final = (0, 1)
BAD_INPUT: Final = 2
INTERRUPTED: Final = 3
QUICK_S: Final = 60.0
QUICK_ENDS_MAX: Final = 5
WARNING_S: Final = 120
"""From SIGTERM, which lets a worker finish its requests in flight, to SIGKILL."""


class Next(Enum):
    """What follows the end of a worker."""

    DONE = "done"
    AGAIN = "again"
    GIVEN_UP = "given up"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Workers in one run directory."""

    name: str
    """The experiment's."""
    directory: Path
    argv: tuple[str, ...]
    """The command of a worker."""
    working_directory: Path
    workers: int
    gpus: int = 0
    """Of each worker; 0 leaves it to the machine."""
    is_assumed_shared: bool = False
    """Whether the user vouches that every host sees the directory."""

    @property
    def files(self) -> Path:
        """The directory of the script and the logs of this job."""
        return self.directory / SUBMIT

    @property
    def in_words(self) -> str:
        """What is started, and where its output is, for the user."""
        return f"{counted(self.workers, 'workers')} on {self.directory}; their output is in {self.log('*')}"

    def log(self, number: int | str) -> Path:
        """The output of one worker, counted from 0."""
        return self.files / f"worker-{number}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The user: where messages go, and how a signal asks the job to stop."""

    say: Callable[[str], None]
    stopping: Callable[[asyncio.Event], AbstractContextManager[None]]


class Executor(Protocol):
    """Runs jobs. A new kind is a class with these methods, and its line in `cli/clusters.py`."""

    def check(self, job: Job) -> None:
        """Raise ConfigError where the job cannot run. Nothing was written yet."""
        ...

    def describe(self, job: Job) -> str:
        """What `submit` would do, for `--dry-run`; touches nothing."""
        ...

    def submit(self, job: Job, terminal: Terminal) -> int:
        """Run the job, or hand it over. Returns the exit code of the command."""
        ...


def worker_argv(file: Path, directory: Path, shard: AutoShard, options: Sequence[str] = ()) -> tuple[str, ...]:
    """The command of a worker, by this interpreter: the environment of the submitter need not be activated."""
    python = (sys.executable, "-P", "-m", "mac_runner")  # -P: modules in the working directory hide none of ours.
    command = ("run", str(file), "--shard", str(shard), "--out", str(directory), "--no-live", *options)
    return (*python, *command)


def next_step(status: int | None, quick_ends: int) -> Next:
    """What follows a worker's end; `status` is negative for a signal and None where it is not known.

    `quick_ends` counts the ends in a row, this one included, that came within `QUICK_S` of a start.
    """
    if status in DONE:
        return Next.DONE
    if status is None or status < 0 or status == INTERRUPTED:
        return Next.GIVEN_UP if quick_ends >= QUICK_ENDS_MAX else Next.AGAIN
    return Next.STOP


def exit_code(statuses: Sequence[int | None]) -> int:
    """The exit code of a job from the last statuses of its workers: one that ended with 0 or 1 saw the whole done."""
    ended = [INTERRUPTED if status is None or status < 0 else status for status in statuses]
    if done := [status for status in ended if status in DONE]:
        return max(done)
    return next((status for status in ended if status != INTERRUPTED), INTERRUPTED)


def check_shared(job: Job, machine: Machine) -> None:
    """Raise ConfigError for a directory that other hosts do not see, as far as the type of its filesystem says so."""
    directory = job.directory
    if not job.is_assumed_shared and not is_network(kind := machine.filesystem(directory)):
        found = f"a filesystem of type {kind}" if kind else "a filesystem of unknown type"
        raise ConfigError(
            f"{directory} is on {found}, which other hosts do not see; choose a directory on shared storage with "
            "--out, or add --assume-shared if every host sees it at this path"
        )


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
        # Here, since who only submits a job, or merges runs, needs neither engines nor their HTTP library.
        from mac_runner.fleet.engine_process import LaneProcess

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
