"""Engines of nano in this process that take a few steps, and then none until the test lets them go.

So a request that is under way stays so: it cannot end before the test has done what should meet it. Whatever else an
engine is asked for it does between two steps, as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from mac_runner.nano import Delta, InferenceEngine

_LOOK_S = 0.001


class HeldSteps:
    """Holds the steps of every engine of this process, replicas in threads too."""

    def __init__(self) -> None:
        # Replaced whole, for an engine may be counting a step meanwhile.
        self._budget: tuple[int, WeakKeyDictionary[InferenceEngine, int]] | None = None

    def hold(self, after: int = 20) -> None:
        """From now on each engine takes so many steps and no more. The requests of a test need many more.

        Several requests that are to be under way at once come while no step is taken, or the first would use them up.
        """
        self._budget = after, WeakKeyDictionary()

    def go(self) -> None:
        """Hold no more."""
        self._budget = None

    def is_held(self, engine: InferenceEngine) -> bool:
        """Count a step, unless the engine is to take none."""
        if (budget := self._budget) is None:
            return False
        after, taken = budget
        taken[engine] = taken.get(engine, 0) + 1
        return taken[engine] > after


@contextmanager
def held_steps() -> Iterator[HeldSteps]:
    """The steps of this process, held from the first `hold` on."""
    from mac_runner.nano import InferenceEngine

    steps, take = HeldSteps(), InferenceEngine.step_deltas

    def step_deltas(engine: InferenceEngine) -> list[Delta]:
        if steps.is_held(engine):
            sleep(_LOOK_S)
            return []
        return take(engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InferenceEngine, "step_deltas", step_deltas)
        try:
            yield steps
        finally:
            steps.go()
