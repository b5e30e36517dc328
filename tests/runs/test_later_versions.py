"""What a later version adds leaves recorded games as they are: roles, and what is measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mac_runner.clock import SystemClock
from mac_runner.environments.town_of_salem import hindsight
from mac_runner.environments.town_of_salem.testing import (
    Alignment,
    Faction,
    NightAbility,
    Role,
    Step,
    measure,
    others,
    register,
    roles_of,
    unregister,
)
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.runs.testing import repair_all, verify_all
from mac_runner.store import read_run, without_timing
from mac_runner.store.testing import replies
from mac_runner.types import JsonObject, JsonValue
from tests.kit import copied, played

INVESTIGATED = ("investigator", "investigator", "sheriff", "doctor", "godfather", "mafioso", "jester")
DRAWN = ("random town", "random town", "any", "any", "random mafia", "neutral evil", "town support")
LOBBIES = pytest.mark.parametrize("lobby", [INVESTIGATED, DRAWN], ids=["investigated", "drawn"])
REPLIES = 40

# Of the Town, on a list of the Investigator, known by a word that players use, and with a verb of its own.
BAKER = Role(
    name="Baker",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night bake for one player.",
    goal="See the Town win.",
    group="town",
    investigator_group=10,
    short_names=("player",),
    abilities=(
        NightAbility(
            verb="bake", help="bake for that player", step=Step.REPORT, effect=lambda night, action: None, aims=others
        ),
    ),
)


def games(lobby: Sequence[str], *, conversations: int = 2, **game: JsonValue) -> JsonObject:
    """Short games of scripted players, with all that tells of roles."""
    return {
        "experiment_metadata": {"experiment_name": "games"},
        "conversation_config": {"environment": "town_of_salem", "conversations": conversations},
        "game": {
            "lobby": [*lobby],
            "discussion": "brief",
            "calendar": {"max_days": 3},
            "tools": ["get_role", "get_attribute"],
            **game,
        },
        "model_definitions": {
            name: {"backend": "scripted", "scripted_config": {"policy": name}} for name in ("heuristic", "random")
        },
        "agent_definitions": [{"agent_id": name, "role": "player", "model": name} for name in ("heuristic", "random")],
    }


@contextmanager
def added(role: Role) -> Iterator[None]:
    register(role)
    try:
        yield
    finally:
        unregister(role.id)


@contextmanager
def silent(_title: str, _steps: int) -> Iterator[Any]:
    yield lambda: None


def findings(run: Path) -> list[str]:
    return [str(found) for verified in verify_all(run, silent) for found in verified.report.findings]


def transcripts(run: Path) -> list[object]:
    contents = read_run(run)
    return [without_timing(contents.transcript(task_id)) for task_id in sorted(contents.planned())]


def broken_off(run: Path, to: Path) -> Path:
    """A copy of a run as it was after its first replies."""
    copied(run, to)
    (segment,) = (to / "journal").iterdir()
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:REPLIES]))
    for path in (*(to / "transcripts").iterdir(), *to.glob("*.jsonl"), to / "summary.json"):
        path.unlink()
    contents = read_run(to)
    assert replies(contents.disk, contents.layout, lambda _task_id: True)
    assert not [*contents.rows()]
    return to


@LOBBIES
def test_a_role_added_later_leaves_recorded_games_sound_and_goes_on_without_it(
    lobby: Sequence[str], tmp_path: Path
) -> None:
    whole = played(games(lobby), tmp_path / "whole")
    begun = broken_off(whole, tmp_path / "begun")
    one = played(games(lobby), tmp_path / "one", limit=1)
    with added(BAKER):
        assert findings(whole) == []
        for run in (begun, one):
            played(games(lobby), run)
            assert transcripts(run) == transcripts(whole)
            assert findings(run) == []
        new = played(games(lobby), tmp_path / "new")
    assert transcripts(new) != transcripts(whole), "the role changes nothing, so this test shows nothing"
    for run in (whole, begun, one):
        assert findings(run) == []


def test_a_casting_of_each_role_by_its_name_goes_on_though_a_role_was_added_later(tmp_path: Path) -> None:
    lobby = ("sheriff", "town support", "godfather")
    cast = {role: "random" if role == "godfather" else "heuristic" for slot in lobby for role in roles_of(slot)}
    experiment = games(lobby, casting={**cast})
    run = played(experiment, tmp_path / "run", limit=1)
    with added(BAKER):
        played(experiment, run)
        assert findings(run) == []
        with pytest.raises(ConfigError, match=r"game\.casting: nobody is cast for Baker \(town\)"):
            played(experiment, tmp_path / "new")


@pytest.mark.ci
def test_a_grid_knows_its_combinations_though_there_are_more_roles(tmp_path: Path) -> None:
    axes: JsonObject = {"_grid": {"sweep": {"game.calendar.max_days": [1, 2]}}}
    grid = played({**games(DRAWN, conversations=1), **axes}, tmp_path / "grid")
    names = {path.stem for path in grid.glob("experiments/*.yaml")}
    with added(BAKER):
        played({**games(DRAWN), **axes}, grid)
        assert findings(grid) == []
    assert {path.stem for path in grid.glob("experiments/*.yaml")} == names


def test_a_run_with_a_role_that_is_gone_is_refused_by_its_name(tmp_path: Path) -> None:
    lobby = ("baker", *INVESTIGATED)
    with added(BAKER):
        run = played(games(lobby, conversations=1), tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="roles that are not there now: baker; import the code"):
        findings(run)
    with pytest.raises(ConfigError, match="baker"):
        played(games(lobby, conversations=2), run)


def test_a_measure_added_later_leaves_recorded_games_sound_and_lost_ones_are_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(games(INVESTIGATED), tmp_path / "run")
    lost = next((run / "transcripts").iterdir())
    before = lost.read_bytes()
    monkeypatch.setattr(hindsight, "measure", lambda *seen: [row + Counter({"loaves": 1}) for row in measure(*seen)])
    assert findings(run) == []
    lost.unlink()
    assert [repaired.is_whole for repaired in repair_all(run, SystemClock())] == [True]
    assert lost.read_bytes() == before
    new = played(games(INVESTIGATED), tmp_path / "new")
    assert b"loaves" in (new / "transcripts" / lost.name).read_bytes()


def test_what_happened_in_a_game_is_compared_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = played(games(INVESTIGATED, conversations=1), tmp_path / "run")
    monkeypatch.setattr(hindsight, "has_won", lambda _state, _player: True)
    assert ["different in outcome" in found for found in findings(run)] == [True]
