"""Cancelled at any of its awaits, a run leaves nothing behind, half-does nothing and says that it was cancelled."""

from __future__ import annotations

import pytest

from tests.sim.cancelling import play
from tests.sim.seeds import told

STRANDS = 4


@pytest.mark.ci
@pytest.mark.parametrize("strand", range(STRANDS))
def test_run_cancelled_at_any_await_leaks_nothing_and_loses_nothing(strand: int) -> None:
    """Every turn of the loop from the first to the last is tried, in strands that can run side by side."""
    turn, is_going = strand + 1, True
    while is_going:
        with told("cancellation", turn):
            is_going = play(turn)
        turn += STRANDS

    assert turn > 300
