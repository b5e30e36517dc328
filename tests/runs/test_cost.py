"""`mac_runner.runs.cost`: a study planned from a pilot takes what the study then takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.runs.cost import Cost, CostRequest, cost_of
from mac_runner.runs.setup import RunRequest
from tests.runs.study import experiment, played, written


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run of 24 discussions on 8 slots."""
    folder = tmp_path_factory.mktemp("pilot")
    played(written(folder, experiment()), folder / "pilot")
    return folder / "pilot"


def planned(folder: Path, pilot: Path, conversations: int = 24, *, resamplings: int = 0, **request: object) -> Cost:
    """The plan of a study."""
    file = written(folder, experiment(conversations))
    return cost_of(
        CostRequest(run=RunRequest(file=file), calibration=pilot, resamplings=resamplings, **request),  # type: ignore[arg-type]
        lambda _line: None,
    )


def test_a_study_takes_what_its_plan_says_at_other_sizes_and_on_other_engines(
    tmp_path: Path, pilot: Path, subtests: pytest.Subtests
) -> None:
    for conversations, slots in ((24, 8), (60, 8), (60, 16), (60, 4)):
        with subtests.test(conversations=conversations, slots=slots):
            actual_s = played(
                written(tmp_path, experiment(conversations)), tmp_path / f"run{conversations}-{slots}", slots=slots
            )

            (row,) = planned(tmp_path, pilot, conversations, slots=(slots,)).rows

            assert row.forecast.conversations == conversations
            assert row.forecast.seconds == pytest.approx(actual_s, rel=0.1)
