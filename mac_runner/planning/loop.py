"""An asyncio loop whose time is a number: timers jump, and the order of what is ready may be drawn from a seed.

Hours pass in milliseconds, two runs of one seed are the same run, and a program in which all tasks wait for ever is
an error immediately. It has no sockets, executor or signals: a request for one of them raises.

It uses private parts of asyncio: `_ready`, and `_process_events`, called once per turn of the loop, behind a
selector that is asked to wait for the next timer. `test_loop.py` holds each version of Python to them.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NoReturn, TypeVar

from mac_runner.clock import SystemClock

T = TypeVar("T")

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class DeadlockError(AssertionError):
    """Nothing is ready and no timer runs: no task will ever go on."""


class ForbiddenError(AssertionError):
    """Something was asked for that knows real time: a socket, a thread, a signal."""


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting, it moves the time of its loop. Once sealed it takes no more files."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.is_sealed = False

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise DeadlockError("every task waits and no timer runs")
        self.now_s += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.is_sealed:
            raise ForbiddenError(f"no sockets in simulated time: {fileobj}")
        return selectors.SelectorKey(fileobj, -1, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return selectors.SelectorKey(fileobj, -1, 0, None)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return {}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        raise KeyError(fileobj)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`asyncio.Runner(loop_factory=lambda: SimulatedLoop(seed))` runs a program on it.

    Without a seed, what is ready runs in the order in which it became ready. `at_turn` is called with the number of
    each turn of the loop, before what is ready runs: no task of the program is running then, each is at one of its
    awaits.
    """

    def __init__(self, seed: int | None) -> None:
        self._jumping = _JumpingSelector()
        self._random = None if seed is None else Random(seed)  # noqa: S311 - a simulation, not secrecy
        self.at_turn: Callable[[int], None] | None = None
        self.turns = 0
        super().__init__(self._jumping)
        self._jumping.is_sealed = True  # What it has now is the pipe by which other threads wake it.

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._jumping.now_s

    def _process_events(self, event_list: list[object]) -> None:
        # Called once per turn of the loop, between the waiting and the running: the moment to shuffle what is ready.
        self.turns += 1
        if self.at_turn is not None:
            self.at_turn(self.turns)
        if self._random is None:
            return
        ready = list(self._ready)  # type: ignore[attr-defined]
        self._random.shuffle(ready)
        self._ready.clear()  # type: ignore[attr-defined]
        self._ready.extend(ready)  # type: ignore[attr-defined]

    def run_in_executor(self, *call: object) -> NoReturn:
        """Raise ForbiddenError."""
        raise ForbiddenError(f"no threads in simulated time: {call}")

    def add_signal_handler(self, *handler: object) -> NoReturn:
        """Raise ForbiddenError."""
        raise ForbiddenError(f"no signals in simulated time: {handler}")


class SimulatedClock(SystemClock):
    """The Clock of the running simulated loop."""

    def utc_now(self) -> datetime:
        return _EPOCH + timedelta(seconds=self.monotonic_s())

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def simulate(program: Callable[[], Awaitable[T]], *, seed: int | None = 0) -> T:
    """Run `program` on a simulated loop; every task it leaves behind is an error."""

    async def main() -> T:
        result = await program()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise AssertionError(f"tasks left behind: {left}")
        return result

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(seed)) as runner:
        return runner.run(main())
