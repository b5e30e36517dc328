"""Cancelled at any of its awaits, a run leaves nothing behind, half-does nothing and says that it was cancelled."""

from __future__ import annotations

import pytest

from tests.sim.cancelling import play, turns
from tests.sim.seeds import told

LAST = 12
"""So many turns of the loop belong to the end of a run."""


@pytest.mark.parametrize(
    "every", [pytest.param(3, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.nightly)], ids=str
)
def test_run_cancelled_at_any_await_leaks_nothing_and_loses_nothing(every: int) -> None:
    """The turns of the loop from the first to the last."""
    end = turns()
    assert end > 300

    for turn in (*range(1, end - LAST, every), *range(end - LAST, end + 1)):
        with told("cancellation", turn):
            assert play(turn) or turn >= end - 1
