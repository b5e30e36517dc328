"""The real scheduler, shell and exchange under everything at once, in hundreds of ways; each failure names its seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests import tiers
from tests.sim.seeds import told
from tests.sim.storm import Played, play, play_cancelled, play_twice, turns_to_cancel
from tests.sim.weather import Fault

SEEDS = 500

BLOCK = 50

BY_DAY = 5

BY_NIGHT = [pytest.param(block, marks=pytest.mark.nightly) for block in range(BY_DAY, SEEDS // BLOCK)]

TWICE_EVERY = 20

ROOT = Path(__file__).parents[2]


def played(seed: int) -> Played:
    with told("storm", seed):
        return play(seed)


@pytest.mark.parametrize("block", [*tiers.first(2, range(BY_DAY)), *BY_NIGHT])
def test_storm_leaves_every_conversation_done_once_as_without_it(block: int) -> None:
    """After each event all invariants hold and sums agree; what a storm leaves is settled ten minutes after it."""
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        with told("storm", seed):
            (play if seed % TWICE_EVERY else play_twice)(seed)


@pytest.mark.parametrize("seed", [3056, 3769, 4664])
def test_storm_that_a_check_once_took_for_broken_is_not(seed: int) -> None:
    """Two conversations that were taken up in the middle of a round, and an engine that a bug ended over one turn."""
    played(seed)


@pytest.mark.ci
def test_storm_is_the_same_under_another_hash_seed() -> None:
    seeds = [str(seed) for seed in range(7, 27)]
    command = [sys.executable, "-m", "tests.sim.seeds", "storm", *seeds]
    told_by = {
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        ).stdout
        for hash_seed in ("1", "2")
    }

    assert len(told_by) == 1
    assert len(told_by.pop().splitlines()) == len(seeds)


def test_storms_are_storms() -> None:
    """Among the first of them everything happens that can: or the promise above is about fair weather."""
    seen = [played(seed) for seed in range(80)]
    met = {fault for storm in seen for fault in storm.met}
    failures = " ".join(failure for storm in seen for failure in storm.failures)

    assert met == set(get_args(Fault))
    assert {ending for storm in seen for ending in storm.endings} == {"done", "stopped", "disk", "crash", "dead"}
    assert "is poison" in failures
    assert "RequestTimeoutError" in failures
    assert "RequestRefusedError" in failures
    assert sum(not storm.failures for storm in seen) > 20


LAST = 12
"""So many turns of the loop belong to the end of a run."""


@pytest.mark.parametrize(
    "every", [pytest.param(3, marks=pytest.mark.ci), pytest.param(1, marks=pytest.mark.nightly)], ids=str
)
def test_run_cancelled_at_any_await_leaks_nothing_and_loses_nothing(every: int) -> None:
    """The turns of the loop from the first to the last."""
    end = turns_to_cancel()
    assert end > 300

    for turn in (*range(1, end - LAST, every), *range(end - LAST, end + 1)):
        with told("cancellation", turn):
            assert play_cancelled(turn) or turn >= end - 1
