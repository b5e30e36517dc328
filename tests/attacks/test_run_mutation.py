"""A damaged file in a run directory is reported or mended; no verb fails over it, and no result is silently another."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.attacks.run_mutation import play
from tests.attacks.tally import Tally
from tests.sim.seeds import told

PARTS = 2
BY_DAY = 18


@pytest.mark.ci
@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_file_is_reported_or_mended_and_changes_no_result(part: int, tally: Tally) -> None:
    tried, faults = Counter[str](), list[str]()
    for seed in range(part, BY_DAY, PARTS):
        try:
            with told("mutated-run", seed):
                tried[play(seed).rpartition(": ")[2]] += 1
        except AssertionError as fault:
            faults.append(str(fault))

    tally(f"damaged run directories, seeds {part} to {BY_DAY - 1} by {PARTS}: {dict(tried)}", len(faults))
    assert not faults, "\n".join(faults)
