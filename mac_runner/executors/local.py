"""Workers on this machine: started here, started again here, and ended with this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Final

from mac_runner.clock import Clock, SystemClock
from mac_runner.errors import ConfigError
from mac_runner.executors.base import Job, Keeper, Next, Terminal, command_line, exit_code, next_step
from mac_runner.fleet.gpus import among, discover
from mac_runner.runs import event_loop
from mac_runner.store import Disk

_VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class LocalExecutor:
    """The executor `local`."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def check(self, job: Job) -> None:
        """Raise ConfigError where there are too few GPUs."""
        _environments(job)

    def describe(self, job: Job) -> str:
        """The command of each worker."""
        return "".join(f"{command_line(job.argv, environment)}\n" for environment in _environments(job))

    def submit(self, job: Job, terminal: Terminal) -> int:
        """Run the workers until the job is done. A signal ends them in order."""
        environments = _environments(job)
        Disk().make_directory(job.files)
        return event_loop.run(self._play(job, environments, terminal))

    async def _play(self, job: Job, environments: Sequence[Mapping[str, str]], terminal: Terminal) -> int:
        stop = asyncio.Event()
        keepers = [
            Keeper(
                name=f"worker {number}",
                argv=job.argv,
                environment=environment,
                log=job.log(number),
                clock=self._clock,
                say=terminal.say,
                stop=stop,
            )
            for number, environment in enumerate(environments)
        ]
        terminal.say(job.in_words)
        with terminal.stopping(stop):
            async with asyncio.TaskGroup() as group:
                workers = [group.create_task(keeper.keep()) for keeper in keepers]
                for worker in workers:
                    worker.add_done_callback(lambda ended: _stop_all(ended, stop))
        return exit_code([worker.result() for worker in workers])


def _stop_all(ended: asyncio.Task[int | None], stop: asyncio.Event) -> None:
    """Stop the others where one ended in a way that they would, too."""
    if not ended.cancelled() and ended.exception() is None and next_step(ended.result(), 0) is Next.STOP:
        stop.set()


def _environments(job: Job) -> list[dict[str, str]]:
    """What each worker has in its environment: its share of the GPUs. Raises ConfigError where they do not suffice."""
    if not job.gpus:
        return [{} for _ in range(job.workers)]
    found = discover()
    gpus = among(found or (), os.environ.get(_VISIBLE))
    if len(gpus) < (wanted := job.workers * job.gpus):
        raise ConfigError(
            f"--gpus {job.gpus}: {job.workers} workers need {wanted} GPUs, and this machine has {len(gpus)}; ask for "
            "fewer workers or GPUs, or leave --gpus out"
        )
    shares = (gpus[first : first + job.gpus] for first in range(0, wanted, job.gpus))
    return [{_VISIBLE: ",".join(gpu.uuid for gpu in share)} for share in shares]
