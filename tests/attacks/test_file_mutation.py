"""An altered experiment file is taken, or refused with its place and in words of ours; nothing is written."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.attacks.file_mutation import play
from tests.attacks.tally import Tally
from tests.sim.seeds import told

PARTS = 2
BY_DAY = 175


@pytest.mark.ci
@pytest.mark.parametrize("part", range(PARTS))
def test_altered_experiment_is_taken_or_refused_by_name(part: int, tally: Tally) -> None:
    tried, faults = Counter[str](), list[str]()
    for seed in range(part, BY_DAY, PARTS):
        try:
            with told("mutated-file", seed):
                tried[play(seed)] += 1
        except AssertionError as fault:
            faults.append(str(fault))

    tally(f"altered experiment files, seeds {part} to {BY_DAY - 1} by {PARTS}: {dict(tried)}", len(faults))
    assert not faults, "\n".join(faults)
