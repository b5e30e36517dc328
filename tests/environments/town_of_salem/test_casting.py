"""`game.casting`: who plays what, over the same deals whoever plays."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mac_runner.config import Experiment, Grid, Loaded, load
from mac_runner.environments.town_of_salem.testing import LOBBIES, ROLES, TownOfSalem, deal, role_list
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.types import JsonValue

HEAD = """\
experiment_metadata: {experiment_name: trial}
seed: 5
conversation_config: {environment: town_of_salem, conversations: 4}
model_definitions:
  wise: {backend: scripted, scripted_config: {policy: heuristic}}
  wild: {backend: scripted, scripted_config: {policy: random}}
agent_definitions:
  - {agent_id: a, role: player, model: wise}
  - {agent_id: b, role: player, model: wild}
  - {agent_id: c, role: player, model: wise, temperature: 0.5}
"""
LOTTERIES = ["any", "any", "random town", "random neutral", "town investigative", "godfather"]


def read(tmp_path: Path, rest: str, **flags: object) -> Loaded | Grid:
    """The experiment of HEAD with a section `game`, which begins on line 11."""
    file = tmp_path / "trial.yaml"
    file.write_text(HEAD + rest, encoding="utf-8")
    return load(file, **flags)  # type: ignore[arg-type]


def refused(tmp_path: Path, rest: str, **flags: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, rest, **flags)
    return [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]


def playing(game: dict[str, JsonValue], *, seed: int = 0, conversations: int = 12) -> Experiment:
    return Experiment.model_validate(
        {
            "experiment_metadata": {"experiment_name": "trial"},
            "seed": seed,
            "conversation_config": {"environment": "town_of_salem", "conversations": conversations},
            "game": game,
            "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
            "agent_definitions": [{"agent_id": name, "role": "player", "model": "m"} for name in "abc"],
        }
    )


def dealt(experiment: Experiment) -> list[list[tuple[str, int, str]]]:
    """Of each game, the name, seat and role of each player."""
    environment = TownOfSalem(experiment)
    return [
        [(player.name, player.seat, player.role) for player in environment.open(task).state.players]
        for task in plan_tasks(experiment, environment.lineup)
    ]


def casts(experiment: Experiment) -> list[dict[str, set[str]]]:
    """Of each game, the agent definitions that play each role."""
    environment = TownOfSalem(experiment)
    found = []
    for task in plan_tasks(experiment, environment.lineup):
        cast: dict[str, set[str]] = {}
        for agent, player in zip(task.agents, environment.open(task).state.players, strict=True):
            cast.setdefault(player.role, set()).add(agent.definition)
        found.append(cast)
    return found


@pytest.mark.ci
@settings(max_examples=40)
@given(seed=st.integers(0, 2**40), lobby=st.sampled_from([*LOBBIES, LOTTERIES]), data=st.data())
def test_who_plays_changes_no_deal(seed: int, lobby: JsonValue, data: st.DataObject) -> None:
    who = st.sampled_from("abc")
    names = who | st.lists(who, min_size=1, max_size=3)
    sides: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
        {"mafia": names, "town": names, "*": names, "town investigative": names}
    )
    size = len(role_list(lobby))  # type: ignore[arg-type]
    first = data.draw(st.integers(0, size))
    games: list[dict[str, Any]] = [
        {"lobby": lobby},
        {"lobby": lobby, "seats": {"a": first, "c": size - first}},
        {"lobby": lobby, "casting": data.draw(sides)},
        {"lobby": lobby, "casting": data.draw(sides)},
    ]

    deals = [dealt(playing(game, seed=seed)) for game in games]

    assert all(deal == deals[0] for deal in deals)


def test_the_most_specific_key_decides() -> None:
    cast: dict[str, JsonValue] = {"Sheriff": "a", "random_town": "b", "town investigative": "c", "town": "a", "*": "b"}
    experiment = playing({"lobby": [*LOTTERIES, "sheriff"], "casting": cast}, conversations=60)
    environment = TownOfSalem(experiment)
    slots, seen = role_list([*LOTTERIES, "sheriff"]), Counter[str]()

    for task in plan_tasks(experiment, environment.lineup):
        roles = deal(slots, task.seed)
        for agent in task.agents:
            role, slot = ROLES[roles[agent.slot]], slots[agent.slot]
            if role.id == "sheriff":
                key, expected = "role", "a"
            elif slot == "random town":
                key, expected = "slot", "b"
            elif role.alignment.value == "town investigative":
                key, expected = "alignment", "c"
            elif role.faction.value == "town":
                key, expected = "faction", "a"
            else:
                key, expected = "*", "b"
            seen[key] += 1
            assert agent.definition == expected, (key, role.id, slot)

    assert len(seen) == 5, seen


def test_a_list_takes_turns_by_game_and_two_lists_meet_in_all_combinations() -> None:
    cast: dict[str, JsonValue] = {"town": ["b", "c"], "mafia": ["a", "b"]}
    played = casts(playing({"lobby": "classic-7", "casting": cast}, conversations=12))
    swapped = casts(playing({"lobby": "classic-7", "casting": dict(reversed(cast.items()))}, conversations=12))

    sides = [(game["godfather"] | game["framer"], game["sheriff"] | game["jailor"]) for game in played]

    assert all(len(mafia) == len(town) == 1 for mafia, town in sides)
    assert Counter((*mafia, *town) for mafia, town in sides) == {(m, t): 3 for m in "ab" for t in "bc"}
    assert played == swapped, "the order of keys is no part of an experiment's identity"


REFUSED = (
    "game: {lobby: classic-7, casting: {mafia: d, town: [a, b, e]}}",
    "game: {lobby: classic-7, casting: {mafia: a, twon: b, '*': c}}",
    "game: {lobby: [sheriff, doctor, godfather], casting: {jester: a, neutral: b, town killing: c, '*': a}}",
    "game: {lobby: [sheriff, jester, godfather], casting: {mafia: a, town: [b, c]}}",
    "game: {lobby: [sheriff, any, godfather], casting: {mafia: a, town: [b, c], neutral killing: a}}",
    "game: {lobby: [sheriff, doctor, godfather], casting: {godfather: a, mafia: b, town: c}}",
    "game: {lobby: classic-12, casting: {serial killer: a, Serial_Killer: b, '*': c}}",
    "game: {lobby: classic-7, casting: {mafia: a, town: [b, c]}, seats: {a: 7}}",
    "game: {lobby: classic-7, casting: {mafia: a, town: b}}",
    "game: {casting: {}}",
    "game: {casting: {'*': []}}",
)


def test_castings_that_cannot_be_meant_are_refused_with_reason_and_key(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert {game: refused(tmp_path, f"{game}\n") for game in REFUSED} == snapshot
    assert refused(tmp_path, "game: {casting: {*: a}}\n")[0].endswith(" begins with * or &")


def test_a_unique_role_with_a_slot_of_its_own_needs_no_cast_elsewhere(tmp_path: Path) -> None:
    """`random mafia` never becomes the Godfather where he has a slot."""
    lobby = "[sheriff, godfather, mafia killing]"

    found = read(tmp_path, f"game: {{lobby: {lobby}, casting: {{godfather: a, mafioso: b, town: c}}}}\n")

    assert isinstance(found, Loaded)


def test_a_grid_over_castings_leaves_out_whom_a_combination_does_not_need(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    rest = (
        "  - {agent_id: d, role: player, model: wild, role_specific_config: {speak_after_within_round: [a, b]}}\n"
        "game: {lobby: classic-7, casting: {mafia: a, town: d}}\n_grid: {sweep: {game.casting.mafia: [a, b, c]}}\n"
    )

    grid = read(tmp_path, rest)
    assert isinstance(grid, Grid)
    experiments = [one.loaded.experiment for one in grid.combinations]

    assert [[agent.agent_id for agent in one.agent_definitions] for one in experiments] == [
        ["a", "d"],
        ["b", "d"],
        ["c", "d"],
    ]
    assert [list(one.model_definitions) for one in experiments] == [["wise", "wild"], ["wild"], ["wise", "wild"]]
    waits = [one.agent_definitions[1].role_specific_config.speak_after_within_round for one in experiments]
    assert waits == [("a",), ("b",), ()]
    assert grid.combinations[2].loaded.locate(("agent_definitions", 0, "temperature")).endswith("trial.yaml:10")
    assert refused(tmp_path, rest.replace("[a, b, c]", "[a, b]")) == snapshot
