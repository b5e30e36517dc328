"""The checks can see: each planted bug is found out by the oracle that is there to find it, which is silent else."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from tests.faults.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_planted_bug_is_found_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    is_found = False
    try:
        mutant.oracle()
    except AssertionError:
        is_found = True
    gc.collect()  # What the bug left behind complains of it here, and not in another test.

    assert is_found


@pytest.mark.parametrize(
    "oracle",
    list(dict.fromkeys(mutant.oracle for mutant in MUTANTS)),
    ids=lambda oracle: oracle.__name__,
)
def test_oracle_is_silent_when_nothing_is_planted(oracle: Callable[[], None]) -> None:
    oracle()


def test_as_many_bugs_are_planted_as_are_promised() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
