"""An asyncio loop whose time is a number, and whose timers jump.

Hours pass in milliseconds, and a program in which all tasks wait for ever is an error immediately. The loop has no
sockets, executor or signals: a request for one of them raises.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
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
    """`asyncio.Runner(loop_factory=SimulatedLoop)` runs a program on it. What is ready runs in its order."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._jumping.is_sealed = True  # What it has now is the pipe by which other threads wake it.

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._jumping.now_s

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


def simulate(program: Callable[[], Awaitable[T]], *, loop_factory: Callable[[], SimulatedLoop] = SimulatedLoop) -> T:
    """Run `program` on a simulated loop; every task it leaves behind is an error."""

    async def main() -> T:
        result = await program()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            raise AssertionError(f"tasks left behind: {left}")
        return result

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(main())
