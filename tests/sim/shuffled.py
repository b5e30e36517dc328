"""Simulated time in which the order of what is ready is drawn from a seed, and each turn of the loop can be stopped at.

It uses private parts of asyncio: `_ready`, and `_process_events`, called once per turn of the loop, behind a selector
that is asked to wait for the next timer. `tests/planning/test_loop.py` holds each version of Python to them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TypeVar

from mac_runner.planning import testing
from mac_runner.planning.testing import SimulatedLoop

T = TypeVar("T")


class ShuffledLoop(SimulatedLoop):
    """`asyncio.Runner(loop_factory=lambda: ShuffledLoop(seed))` runs a program on it.

    `at_turn` is called with the number of each turn of the loop, before what is ready runs: no task of the program is
    running then, each is at one of its awaits.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.at_turn: Callable[[int], None] | None = None
        self.turns = 0
        super().__init__()

    def _process_events(self, event_list: list[object]) -> None:
        # Between the waiting and the running: the moment to shuffle what is ready.
        self.turns += 1
        if self.at_turn is not None:
            self.at_turn(self.turns)
        ready = list(self._ready)  # type: ignore[attr-defined]
        self._random.shuffle(ready)
        self._ready.clear()  # type: ignore[attr-defined]
        self._ready.extend(ready)  # type: ignore[attr-defined]


def simulate(program: Callable[[], Awaitable[T]], *, seed: int = 0) -> T:
    """Run `program` in simulated time, in an order of its own for each seed."""
    return testing.simulate(program, loop_factory=partial(ShuffledLoop, seed))
