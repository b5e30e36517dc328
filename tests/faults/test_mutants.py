"""The checks can see: each planted bug is found out by the oracle that is there to find it, which is silent else."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from mac_runner.errors import MacRunnerError
from tests.faults.mutants import MUTANTS, Mutant
from tests.faults.oracles import EXCERPTS
from tests.tiers import some


@pytest.mark.parametrize("mutant", some(3, MUTANTS), ids=lambda mutant: mutant.name)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_planted_bug_is_found_out(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    found: set[type[BaseException]] = set()
    try:
        mutant.oracle()
    except (AssertionError, MacRunnerError) as violation:  # The latter when the store cannot go on.
        found = kinds(violation)
    gc.collect()  # What the bug left behind complains of it here, and not in another test.

    assert found
    assert found.isdisjoint({AttributeError, TypeError, NameError}), "the mutant does not fit the code any more"


def kinds(fault: BaseException | None) -> set[type[BaseException]]:
    """The types of an error and of what it came from."""
    return set() if fault is None else {type(fault)} | kinds(fault.__cause__ or fault.__context__)


@pytest.mark.nightly
@pytest.mark.parametrize("oracle", EXCERPTS, ids=lambda oracle: oracle.__name__)
def test_oracle_is_silent_when_nothing_is_planted(oracle: Callable[[], None]) -> None:
    """By day the tests that they are parts of are silent, as are the other oracles, which are whole tests."""
    oracle()


def test_as_many_bugs_are_planted_as_are_promised() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) == 32
