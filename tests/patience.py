"""Waiting in tests: for an event, as long as anything of ours makes progress.

A machine with other work to do is slow, and a slow test is no failure. So a wait gives up only once the threads and
child processes of the test have used no CPU for a minute, or after ten.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from time import sleep  # By its name: the guard of the first tier counts calls of `time.sleep`, and no waits.
from typing import Any, TypeAlias

import psutil

LIMIT_S = 600.0
"""For bounds that are a number: of a socket, a join, `asyncio.timeout`. What they bound takes well under a second."""
_STALLED_S = 60.0
_LOOK_S = 0.005
_MEASURE_S = 1.0

Progress: TypeAlias = frozenset[tuple[int, float]]


class Patience:
    """What is left of the patience with `what`; one for each wait."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began_s = self._moved_s = self._measured_s = time.monotonic()
        self._progress = _progress()

    def check(self) -> None:
        """Fail the test if nothing has moved for long; call it between two looks."""
        now_s = time.monotonic()
        if now_s - self._measured_s < _MEASURE_S:
            return
        self._measured_s = now_s
        if (progress := _progress()) != self._progress:
            self._progress, self._moved_s = progress, now_s
        assert now_s - self._moved_s < _STALLED_S, f"nothing moves any more: {self._what}"
        assert now_s - self._began_s < LIMIT_S, f"in vain: {self._what}"


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds."""
    patience = Patience(what)
    while not condition():
        patience.check()
        sleep(_LOOK_S)


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition` holds, in the event loop that makes it hold: its progress can't be told from this wait."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"in vain: {what}"
        await asyncio.sleep(_LOOK_S)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a process, once it has ended; those that are no pipes are empty."""
    patience = Patience(f"the end of {process.args!r}")
    while True:
        try:
            out, err = process.communicate(timeout=_MEASURE_S)
            return process.returncode, out or "", err or ""
        except subprocess.TimeoutExpired:
            patience.check()


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in text mode; `options` are those of `Popen`. It is killed when it hangs."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            return subprocess.CompletedProcess(command, *ended(process))
        except BaseException:
            process.kill()
            raise


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def descendants() -> list[psutil.Process]:
    """All processes that this one has started, and theirs."""
    return psutil.Process().children(recursive=True)


def wait_for_ends(processes: Sequence[psutil.Process]) -> None:
    """Wait until none of them is alive. Their parents may hear of it later."""
    wait_for(lambda: not any(map(is_alive, processes)), f"the end of {processes}")


def _progress() -> Progress:
    """The CPU seconds of each child process, and those of the threads of this process that do not wait here."""
    others_s = time.process_time() - time.thread_time()
    found = {(0, round(others_s, 2))}
    for child in descendants():
        try:
            times = child.cpu_times()
        except psutil.Error:  # It has just ended, which is progress too.
            continue
        found.add((child.pid, times.user + times.system))
    return frozenset(found)
