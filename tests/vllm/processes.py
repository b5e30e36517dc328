"""Which processes vLLM has running, as the system tells it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple


class Process(NamedTuple):
    """A running process."""

    pid: int
    parent: int
    state: str
    command: str


def engine_processes(ancestor: int | None = None) -> list[Process]:
    """vLLM's processes below `ancestor` (this process, unless one is given).

    The tracker of shared memory is none of them: it lasts as long as the process that vLLM runs in.
    """
    below = {os.getpid() if ancestor is None else ancestor}
    found = []
    for process in all_processes():  # Parents come first, except where numbers have begun anew.
        if process.parent in below:
            below.add(process.pid)
            if process.state[0] != "Z" and "resource_tracker" not in process.command:
                found.append(process)
    return [process for process in found if not process.command.startswith("ps ")]


@contextmanager
def standing_still(processes: Iterable[Process]) -> Iterator[None]:
    """Engines that answer nothing for the time of the block, so that no request can end in it. It may kill them."""
    stopped = [*processes]
    signal_all(stopped, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(stopped, signal.SIGCONT)


def signal_all(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to those that are still there."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def all_processes() -> list[Process]:
    """Every process of the machine, the oldest first."""
    lines = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,stat=,args=", "--sort=start_time"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    fields = (line.split(maxsplit=3) for line in lines)
    return [Process(int(pid), int(parent), state, command) for pid, parent, state, command in fields]
