"""Real sockets and threads in a time that stands still until the test moves it.

So no bound runs out because the machine is busy, and a rest of a minute takes no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar

from tests.patience import LIMIT_S
from tests.sim.shuffled import simulate

T = TypeVar("T")
P = ParamSpec("P")
Test: TypeAlias = Callable[P, Coroutine[Any, Any, None]]


class _Patient(selectors.DefaultSelector):
    """It waits for sockets and threads alone: a timer is due once time was moved, and then the loop does not wait."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        waits = timeout is None or timeout > 0
        ready = super().select(LIMIT_S if waits else 0)
        assert ready or not waits, "every task waits, no socket has anything, and nobody moves the time"
        return ready


class HeldLoop(asyncio.SelectorEventLoop):
    """Its `time` is a number. `SimulatedClock` is the clock that goes with it."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Patient())

    def time(self) -> float:
        """What the test has moved it by."""
        return self._now_s

    def move(self, by_s: float) -> None:
        """Let so much time pass; another thread calls it by `call_soon_threadsafe`."""
        self._now_s += by_s


def in_held_time(program: Coroutine[Any, Any, T]) -> T:
    """Run a program as `asyncio.run` does."""
    with asyncio.Runner(loop_factory=HeldLoop) as runner:
        return runner.run(program)


def played_by(run: Callable[[Callable[[], Coroutine[Any, Any, None]]], None]) -> Callable[[Test[P]], Callable[P, None]]:
    """A decorator of tests that are coroutines, which `run` plays."""

    def decorate(test: Test[P]) -> Callable[P, None]:
        @wraps(test)
        def play(*given: P.args, **named: P.kwargs) -> None:
            run(lambda: test(*given, **named))

        return play

    return decorate


held = played_by(lambda program: in_held_time(program()))
"""A test that is a coroutine, in held time."""
simulated = played_by(simulate)
"""The same in simulated time: it has no sockets, and its sleeps take none."""
real = played_by(lambda program: asyncio.run(program()))
"""The same in real time."""


def move(by_s: float) -> None:
    """Let so much time of the running loop pass."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HeldLoop)
    loop.move(by_s)
