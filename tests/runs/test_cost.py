"""`mac_runner.runs.cost`: a study planned from a pilot takes what the study then takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.runs import RunRequest
from mac_runner.runs.testing import Cost, CostRequest, cost_of
from tests.runs.study import experiment, played, written
from tests.tiers import first


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


@pytest.mark.parametrize("size", first(1, [(24, 8), (40, 16), (40, 4)]))
def test_a_study_takes_what_its_plan_says_at_other_sizes_and_on_other_engines(
    tmp_path: Path, pilot: Path, size: tuple[int, int]
) -> None:
    conversations, slots = size
    actual_s = played(written(tmp_path, experiment(conversations)), tmp_path / "run", slots=slots)

    (row,) = planned(tmp_path, pilot, conversations, slots=(slots,)).rows

    assert row.forecast.conversations == conversations
    assert row.forecast.seconds == pytest.approx(actual_s, rel=0.1)


@pytest.mark.ci
def test_the_interval_holds_the_plan_and_a_large_study_is_made_smaller_for_it(
    tmp_path: Path, pilot: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("mac_runner.runs.cost.SPREAD_TURNS", 150)
    said: list[str] = []
    file = written(tmp_path, experiment(40))
    request = CostRequest(run=RunRequest(file=file), calibration=pilot, lanes=(4,), resamplings=4)

    found = cost_of(request, said.append)

    assert found.spread is not None
    low, high = found.spread
    assert 0.7 < low <= 1.05
    assert max(low, 0.95) <= high < 1.3
    assert said == snapshot
    assert any(re.match(r"each resampling played", note) for note in found.notes)


@pytest.mark.ci
def test_the_interval_is_as_narrow_as_what_the_forecast_rests_on(
    tmp_path: Path, pilot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mac_runner.runs.cost.SPREAD_TURNS", 50)

    found = planned(tmp_path, pilot, 80, resamplings=4, slots=(2,))

    (note,) = (note for note in found.notes if "narrowed" in note)
    played, factor = re.findall(r"[\d.]+", note)
    assert 3 <= int(played) <= 8
    # A pilot of 24 conversations, and a forecast of 80.
    assert float(factor) == pytest.approx(((1 / 24 + 1 / int(played)) / (1 / 24 + 1 / 80)) ** 0.5, rel=0.01)


def test_combinations_of_a_grid_share_their_engines_and_each_has_its_own_replies(tmp_path: Path, pilot: Path) -> None:
    content = experiment(12)
    content["_grid"] = {"sweep": {"discussion.max_rounds": [3, 2]}}
    request = CostRequest(
        run=RunRequest(file=written(tmp_path, content), out=tmp_path / "out"), calibration=pilot, resamplings=0
    )

    found = cost_of(request, lambda _line: None)

    assert found.rows[0].forecast.conversations == 24
    assert list(found.rows[0].forecast.engines) == ["panel"]
    assert len(found.replies) == 2
    assert "finished conversations of" in found.replies[0]
    assert "player 'discussant'" in found.replies[1]
    assert any("(discussion.max_rounds differs)" in note for note in found.notes)
