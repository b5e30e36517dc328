"""The presets of `game.discussion`: what they set, what contradicts them, and what they cost."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from benchmarks.discussion_presets import experiment_of, mean_cost
from mac_runner.environments.town_of_salem import SPEC, GameConfig
from mac_runner.environments.town_of_salem.testing import DISCUSSIONS, GameCalendar

DOCS = Path(__file__).parents[3] / "docs" / "town_of_salem.md"
GAMES = 3
_ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)


def test_preset_writes_its_keys_into_the_calendar() -> None:
    for name, keys in DISCUSSIONS.items():
        game = GameConfig.model_validate({"discussion": name, "calendar": {"max_days": 9}})
        assert game.calendar == GameCalendar.model_validate({**keys, "max_days": 9})
        assert GameConfig.model_validate(game.model_dump()) == game, "the record of a run reads as it was written"
    assert GameConfig().calendar == GameCalendar()
    assert GameConfig.model_validate({"discussion": "standard"}).calendar == GameCalendar()


def test_names_of_presets_are_those_of_the_file() -> None:
    assert set(get_args(get_args(GameConfig.model_fields["discussion"].annotation)[0])) == set(DISCUSSIONS)
    with pytest.raises(ValidationError, match="calendar"):
        GameConfig.model_validate({"discussion": "quick", "calendar": "none"})


def test_key_that_contradicts_its_preset_is_refused_by_name() -> None:
    same = GameConfig.model_validate({"discussion": "quick", "calendar": {"discussion_rounds": 1}})
    other = GameConfig.model_validate({"discussion": "quick", "calendar": {"discussion_rounds": 2}})
    experiment = experiment_of("quick", lobby="classic-7", games=1)
    assert SPEC.check is not None
    assert not [*SPEC.check(experiment, same)]
    (problem,) = SPEC.check(experiment, other)
    assert problem.path == ("game", "calendar", "discussion_rounds")
    assert "quick sets it" in problem.text


@pytest.mark.ci
def test_costs_in_the_docs_are_those_of_games() -> None:
    """The table is of 50 games each; a few show that it is of this game."""
    listed = {name: tuple(map(int, row)) for name, *row in _ROW.findall(DOCS.read_text(encoding="utf-8"))}
    assert [*listed] == [*DISCUSSIONS]
    for name, (_, _, turns_a_day, chain_a_day) in listed.items():
        turns, chain, days = mean_cost(name, lobby="classic-10", games=GAMES)
        assert turns / days == pytest.approx(turns_a_day, rel=0.25), name
        assert chain / days == pytest.approx(chain_a_day, rel=0.25), name
    assert listed["brief"][1] < listed["simultaneous"][1] < listed["standard"][1] < listed["thorough"][1]
