"""What a looped test tried, for the terminal: it comes after the results, also where tests run beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import pytest

from tests.sim.seeds import played

Tally: TypeAlias = Callable[[str, int], None]
"""Takes what was tried and how many faults it showed."""


class Draw(Protocol):
    """Plays seeds of one kind, and fails with whatever did not hold; `told` makes few words of what they came to."""

    def __call__(self, kind: str, seeds: Sequence[int], told: Callable[[list[Any]], object] = Counter) -> None: ...


@pytest.fixture
def tally(record_property: Callable[[str, object], None]) -> Tally:
    return lambda tried, faults: record_property("tried", f"{tried}; {faults or 'no'} faults")


@pytest.fixture
def draw(tally: Tally) -> Draw:
    def draw(kind: str, seeds: Sequence[int], told: Callable[[list[Any]], object] = Counter) -> None:
        came, faults = played(kind, seeds)
        tally(f"{kind}, {len(seeds)} from seed {seeds[0]} on: {told(came)}", len(faults))
        assert not faults, "\n".join(faults)

    return draw
