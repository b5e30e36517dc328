"""Workers as tasks of a Ray cluster: one task for each, on a node of its own where there are enough.

Ray only places the tasks and starts those of a dead node elsewhere. Within a task the worker is kept as on this machine
(`keeper`), so it does not outlive the task, the node's raylet or the command that submitted it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final

from mac_runner.clock import SystemClock
from mac_runner.errors import ConfigError
from mac_runner.executors.base import (
    BAD_INPUT,
    INTERRUPTED,
    Job,
    Keeper,
    Next,
    Terminal,
    check_shared,
    command_line,
    exit_code,
    next_step,
)
from mac_runner.extras import install_command
from mac_runner.printable import counted
from mac_runner.runs import event_loop
from mac_runner.store import Disk
from mac_runner.store.machine import Machine

_BUG: Final = 70


class RayExecutor:
    """The executor `ray`."""

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine()

    def check(self, job: Job) -> None:
        """Raise ConfigError where Ray is not installed, no cluster answers, or nodes would not see the directory."""
        if find_spec("ray") is None:
            raise ConfigError(f"--executor ray needs Ray, which is not installed: {install_command('ray')}")
        check_shared(job, self._machine)
        os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Or Ray shows one of the lines that differ in a number only.
        import ray

        try:
            ray.init(address="auto", logging_level="warning", ignore_reinit_error=True)
        except ConnectionError as fault:
            raise ConfigError(
                "--executor ray found no Ray cluster: start one with ray start --head, set RAY_ADDRESS, or choose "
                "--executor local"
            ) from fault

    def describe(self, job: Job) -> str:
        """The options of the tasks, and their command."""
        return f"# {counted(job.workers, 'Ray tasks')} with {_options(job)}\n{command_line(job.argv, {})}\n"

    def submit(self, job: Job, terminal: Terminal) -> int:
        """Run the tasks until the job is done. A signal ends them in order."""
        Disk().make_directory(job.files)
        return event_loop.run(_play(job, terminal))


async def _play(job: Job, terminal: Terminal) -> int:
    import ray

    task = ray.remote(_work).options(**_options(job))
    references = [task.remote(job, number) for number in range(job.workers)]
    waiting = {asyncio.wrap_future(reference.future()): number for number, reference in enumerate(references)}
    statuses: list[int | None] = [INTERRUPTED] * job.workers
    terminal.say(job.in_words)
    stop = asyncio.Event()
    with terminal.stopping(stop):
        stopping = asyncio.create_task(_cancel_on(stop, references))
        while waiting:
            ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in ended:
                number = waiting.pop(future)
                statuses[number] = _status(future, number, terminal)
                if next_step(statuses[number], 0) is Next.STOP:
                    stop.set()
        stopping.cancel()
        await asyncio.wait({stopping})
    return exit_code(statuses)


async def _cancel_on(stop: asyncio.Event, references: Sequence[Any]) -> None:
    import ray

    await stop.wait()
    for reference in references:
        ray.cancel(reference)


def _status(future: asyncio.Future[int | None], number: int, terminal: Terminal) -> int | None:
    """The last status of a worker. A task that fails by itself is a bug, or a package that its node lacks."""
    from ray.exceptions import TaskCancelledError

    if (fault := future.exception()) is None:
        return future.result()
    if isinstance(fault, TaskCancelledError):
        return INTERRUPTED
    terminal.say(f"worker {number}: its Ray task failed: {fault}")
    return _BUG


def _work(job: Job, number: int) -> int | None:
    """The task: one worker, kept on this node until the job is done."""
    import ray

    # A job of `ray job submit --working-dir` has a copy of that directory on each node.
    if not ray.get_runtime_context().runtime_env.get("working_dir"):
        os.chdir(job.working_directory)
    if not job.files.is_dir():
        _say(f"{job.directory} is not visible on this node; it must be on shared storage")
        return BAD_INPUT
    here = replace(job, argv=(sys.executable, *job.argv[1:]))
    return event_loop.run(_keep(here, number))


async def _keep(job: Job, number: int) -> int | None:
    stop = asyncio.Event()
    # What `ray.cancel` sends. The default handler would not wake a loop that waits.
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    return await Keeper(
        name=f"worker {number}",
        argv=job.argv,
        environment={},
        log=job.log(number),
        clock=SystemClock(),
        say=_say,
        stop=stop,
    ).keep()


def _say(line: str) -> None:
    """Ray shows it to the user, after the task's node."""
    sys.stderr.write(f"{line}\n")


def _options(job: Job) -> Mapping[str, Any]:
    return {"num_gpus": job.gpus, "max_retries": -1, "scheduling_strategy": "SPREAD", "name": f"mac-run {job.name}"}
