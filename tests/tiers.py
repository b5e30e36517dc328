"""The tiers of the tests, and what keeps the first one quick and steady.

(a) what has no mark of a tier: rules, readers, figures, formats, state machines in simulated time, and servers within
    the test's own process. It uses no other process, no real time and little of the processor. `smoke` declares the few
    that start a process all the same. They are under no rule: on a busy machine they wait for it long, and look often.
(b) `ci`: processes, signals, kills, all of ROOMS, and what takes longer than (a) has time for: `.ci/run`.
(c) `nightly`: what takes long, or shows at scale what another test shows in small. `.ci/nightly` plays it.

A test of (a) that starts an undeclared process, sleeps, or takes more than two CPU seconds fails here, on any machine:
a slow one, or a busy one, is given more of them (`_slowness`). A wait for another thread is no sleep if what it waits
for comes, however often it looks; and its files are not synced to the disk, which may take as long as the disk likes.
Not seen are waits inside of C: for a lock, the end of a thread, a `queue.SimpleQueue`, a file or a blocking socket.
"""

from __future__ import annotations

import itertools
import os
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

MARKS = {
    "smoke": "starts a process, and is quick enough for the first tier all the same",
    "ci": "real processes or time, or long: .ci/run plays it, pytest -m ci",
    "nightly": "large or long: .ci/nightly plays it, pytest -m nightly",
}
ROOMS = ("backends/nano", "browser", "nano", "ray", "trainers", "vllm")
"""What stands on an engine, a cluster or a browser is of tier (b), whatever its marks."""
CPU_S_MAX = 2.0
SLEPT_S_MAX = 0.25
"""Nothing is meant to sleep. What polls another thread may sleep a few milliseconds at a time."""
_FOLDERS = tuple(f"{room}/" for room in ROOMS)
_TESTS = Path(__file__).parent
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "os.system"})


def first(count: int, values: Iterable[Any], *, tier: str = "", rest: str = "ci") -> list[Any]:
    """Parameters of a test: so many of them are of the first tier, or of `tier`; all others are of `rest`."""
    tiers = (tier if number < count else rest for number in itertools.count())
    return [
        pytest.param(value, marks=getattr(pytest.mark, mark)) if mark else value
        for value, mark in zip(values, tiers, strict=False)
    ]


def some(every: int, values: Iterable[Any]) -> list[Any]:
    """Parameters of a test that are much alike: one in so many is of tier (b), and all others are of the night."""
    tiers = (pytest.mark.ci if number % every == 0 else pytest.mark.nightly for number in itertools.count())
    return [pytest.param(value, marks=mark) for value, mark in zip(values, tiers, strict=False)]


class Guard:
    """Watches each test of the first tier from its set-up to its tear-down."""

    def __init__(self) -> None:
        self._started: list[str] = []
        self._slept_s = 0.0
        self._waited_s: dict[object, float] = {}
        """In vain, so far, by the condition that was waited for."""
        self._began_s = 0.0
        self._is_first = False
        sys.addaudithook(self._hear)
        # A process that multiprocessing spawns raises no audit event.
        _before(BaseProcess, "start", lambda process: self._started.append(repr(process)))
        _before(time, "sleep", self._sleep)
        _after(selectors.DefaultSelector, "select", self._select)
        _after(threading.Condition, "wait", self._wait)
        _after(threading.Event, "wait", self._look)
        sync = os.fsync

        def fsync(fd: Any) -> None:
            if self._is_first:
                os.fstat(fd)  # It has to be open all the same.
            else:
                sync(fd)

        os.fsync = fsync

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark the tests of ROOMS, before the tier is chosen by its mark."""
        for item in items:
            if item.path.is_relative_to(_TESTS) and item.path.relative_to(_TESTS).as_posix().startswith(_FOLDERS):
                item.add_marker("ci")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """Begin at nothing."""
        self._started.clear()
        self._waited_s.clear()
        self._slept_s, self._began_s = 0.0, _cpu_s()
        self._is_first = not any(item.get_closest_marker(mark) for mark in MARKS)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        """Fail a test that does not keep to its tier."""
        result = yield
        took_s = _cpu_s() - self._began_s
        if self._is_first:
            broken = list(self._faults(took_s))
            if broken:
                pytest.fail(f"no test of the first tier: {'; '.join(broken)} (see tests/tiers.py)", pytrace=False)
        return result

    def _faults(self, took_s: float) -> Iterator[str]:
        if self._started:
            yield f"it starts {self._started[0]}"
        if (slept_s := self._slept_s + sum(self._waited_s.values())) > SLEPT_S_MAX:
            yield f"it sleeps {slept_s:.2f} s"
        if took_s > CPU_S_MAX and took_s > CPU_S_MAX * _slowness():
            yield f"it takes {took_s:.1f} CPU seconds"

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _STARTS:
            self._started.append(f"{event} {arguments[1:2]}")

    def _sleep(self, duration_s: float) -> None:
        """Other threads may wait as long as they like: only this one holds up the tests."""
        if threading.current_thread() is threading.main_thread():
            self._slept_s += duration_s

    def _select(self, _selector: object, timeout_s: float | None, found: object) -> None:
        if not found:
            self._sleep(max(timeout_s or 0.0, 0.0))

    def _look(self, event: Any, timeout_s: float | None, came: object) -> None:
        """An event that has come between two looks is not waited for again."""
        if came:
            self._wait(event._cond, timeout_s, came)

    def _wait(self, condition: object, timeout_s: float | None, came: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._waited_s[condition] = 0.0 if came else self._waited_s.get(condition, 0.0) + (timeout_s or 0.0)


def _before(owner: Any, name: str, note: Callable[..., object]) -> None:
    function = getattr(owner, name)

    def noting(*arguments: Any) -> Any:
        note(*arguments)
        return function(*arguments)

    setattr(owner, name, noting)


def _after(owner: Any, name: str, note: Callable[[Any, float | None, object], object]) -> None:
    """Note each wait: on what, for how long at most, and what it brought."""
    function = getattr(owner, name)

    def noting(self: object, timeout: float | None = None) -> Any:
        found = function(self, timeout)
        note(self, timeout, found)
        return found

    setattr(owner, name, noting)


def _slowness() -> float:
    """How much longer this machine may compute now than the one that the bound was set on.

    It is the worst of a few tries, and half as much again: memory that other programs use too slows a test more than
    these, and what slowed it may be over.
    """
    return 1.5 * max(1.0, *(_tried_s() / 0.02 for _ in range(5)))


def _tried_s() -> float:
    began_s = time.thread_time()
    sum(number * number for number in range(500_000))
    return time.thread_time() - began_s


def _cpu_s() -> float:
    """What this process and its ended children have used."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
