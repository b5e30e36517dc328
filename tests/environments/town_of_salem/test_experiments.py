"""From an experiment to games: deals, options and gates, presets of discussions, who plays what, and tournaments.

`game.casting` says who plays what, over the same deals whoever plays; `game.pairings` is a grid of castings over the
same deals on both sides.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from syrupy.assertion import SnapshotAssertion

from benchmarks.discussion_presets import experiment_of, mean_cost
from mac_runner.config import Experiment, Grid, Loaded, load
from mac_runner.environments import build_environment
from mac_runner.environments.town_of_salem import SPEC, GameConfig
from mac_runner.environments.town_of_salem.testing import (
    DISCUSSIONS,
    LOBBIES,
    NAMES,
    ROLES,
    Game,
    GameCalendar,
    Options,
    TownOfSalem,
    deal,
    role_list,
)
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.runs.setup import located
from mac_runner.types import JsonObject, JsonValue, Task

DOCS = Path(__file__).parents[3] / "docs" / "town_of_salem.md"
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
NEUTRALS = "[sheriff, any, doctor, godfather, random mafia]"


def read(tmp_path: Path, rest: str, **flags: object) -> Loaded | Grid:
    """The experiment of HEAD with a section `game`, which begins on line 11."""
    file = tmp_path / "trial.yaml"
    file.write_text(HEAD + rest, encoding="utf-8")
    return load(file, **flags)  # type: ignore[arg-type]


def grid(tmp_path: Path, rest: str) -> Grid:
    found = read(tmp_path, rest)
    assert isinstance(found, Grid)
    return found


def experiments(found: Grid) -> list[Experiment]:
    return [one.loaded.experiment for one in found.combinations]


def refused(tmp_path: Path, rest: str, **flags: object) -> list[str]:
    """Why an experiment cannot be loaded, or its games not be played."""

    def set_up() -> None:
        if isinstance(found := read(tmp_path, rest, **flags), Loaded):
            with located(found):
                build_environment(found.experiment)

    with pytest.raises(ConfigError) as caught:
        set_up()
    return [line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines()]


def playing(
    game: JsonObject, *, seed: int = 0, conversations: int = 12, agents: Sequence[JsonValue] = ("a", "b", "c")
) -> Experiment:
    """An experiment; an agent is a name, or what its definition says beyond its role and model."""
    named = [{"agent_id": agent} if isinstance(agent, str) else agent for agent in agents]
    return Experiment.model_validate(
        {
            "experiment_metadata": {"experiment_name": "trial"},
            "seed": seed,
            "conversation_config": {"environment": "town_of_salem", "conversations": conversations},
            "game": game,
            "model_definitions": {"m": {"backend": "scripted", "scripted_config": {"policy": "random"}}},
            "agent_definitions": [{"role": "player", "model": "m"} | agent for agent in named],  # type: ignore[operator]
        }
    )


def games(experiment: Experiment) -> list[tuple[Task, Game]]:
    environment = TownOfSalem(experiment)
    return [(task, environment.open(task)) for task in plan_tasks(experiment, environment.lineup)]


def dealt(experiment: Experiment) -> list[list[tuple[str, int, str]]]:
    """Of each game, the name, seat and role of each player."""
    return [[(player.name, player.seat, player.role) for player in game.state.players] for _, game in games(experiment)]


GATED: JsonValue = {"agent_id": "late", "role_specific_config": {"speak_after_within_round": ["early"]}}


def test_games_have_the_slots_names_flags_counts_and_gates_of_their_experiment() -> None:
    flags: dict[str, Any] = {"sheriff": "typed", "haunt_pool": "guilty", "mafia_parity": True}
    counts = {"greeting_rounds": 2, "discussion_rounds": 3, "vote_rounds": 4, "night_chat_rounds": 5}
    calendar: dict[str, Any] = {**counts, "trials_per_day": 6, "max_days": 7}
    written: JsonObject = {"lobby": "classic-8", "flags": flags, "calendar": calendar}
    experiment = playing(written, agents=("early", GATED))
    environment = build_environment(experiment)
    assert isinstance(environment, TownOfSalem)
    assert (environment.lineup.slots, environment.lineup.names) == (LOBBIES["classic-8"], NAMES)
    for task, game in games(experiment):
        state = game.state
        assert [player.name for player in state.players] == [agent.agent_id for agent in task.agents]
        assert [player.dealt for player in state.players] == [LOBBIES["classic-8"][a.slot] for a in task.agents]
        assert state.options == Options(**flags, **calendar)
        spoken = [task.agents[seat].definition for seat in state.order]
        assert spoken == sorted(spoken)
    first, second, *_ = plan_tasks(experiment, environment.lineup)
    assert environment.open(first).fingerprint() == environment.open(first).fingerprint()
    assert environment.open(first).fingerprint() != environment.open(second).fingerprint()


# `game.discussion`: what its presets set, what contradicts them, and what they cost.


def test_preset_writes_its_keys_into_the_calendar_and_a_key_that_contradicts_it_is_refused_by_name() -> None:
    for name, keys in DISCUSSIONS.items():
        game = GameConfig.model_validate({"discussion": name, "calendar": {"max_days": 9}})
        assert game.calendar == GameCalendar.model_validate({**keys, "max_days": 9})
        assert GameConfig.model_validate(game.model_dump()) == game, "the record of a run reads as it was written"
    assert GameConfig().calendar == GameConfig.model_validate({"discussion": "standard"}).calendar == GameCalendar()
    assert set(get_args(get_args(GameConfig.model_fields["discussion"].annotation)[0])) == set(DISCUSSIONS)
    with pytest.raises(ValidationError, match="calendar"):
        GameConfig.model_validate({"discussion": "quick", "calendar": "none"})
    same, other = (
        GameConfig.model_validate({"discussion": "quick", "calendar": {"discussion_rounds": rounds}})
        for rounds in (1, 2)
    )
    experiment = experiment_of("quick", lobby="classic-7", games=1)
    assert SPEC.check is not None
    assert not [*SPEC.check(experiment, same)]
    (problem,) = SPEC.check(experiment, other)
    assert problem.path == ("game", "calendar", "discussion_rounds")
    assert "quick sets it" in problem.text


@pytest.mark.ci
def test_costs_in_the_docs_are_those_of_games() -> None:
    """The table is of 50 games each; a few show that it is of this game."""
    row_of_preset = re.compile(r"^\| `(\w+)` \| `\w+` \|.*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
    listed = {name: tuple(map(int, row)) for name, *row in row_of_preset.findall(DOCS.read_text(encoding="utf-8"))}
    assert [*listed] == [*DISCUSSIONS]
    for name, (_, _, turns_a_day, chain_a_day) in listed.items():
        turns, chain, days = mean_cost(name, lobby="classic-10", games=3)
        assert turns / days == pytest.approx(turns_a_day, rel=0.25), name
        assert chain / days == pytest.approx(chain_a_day, rel=0.25), name
    assert listed["brief"][1] < listed["simultaneous"][1] < listed["standard"][1] < listed["thorough"][1]


# Castings.


@pytest.mark.ci
@settings(max_examples=40)
@given(seed=st.integers(0, 2**40), lobby=st.sampled_from([*LOBBIES, LOTTERIES]), data=st.data())
def test_who_plays_changes_no_deal(seed: int, lobby: JsonValue, data: st.DataObject) -> None:
    who = st.sampled_from("abc")
    names = who | st.lists(who, min_size=1, max_size=3)
    keys = ["mafia", "town", "town investigative"]
    if lobby != "classic-7":  # No deal of it has a neutral role, for whom `*` would cast.
        keys.append("*")
    sides: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(dict.fromkeys(keys, names))
    size = len(role_list(lobby))  # type: ignore[arg-type]
    first = data.draw(st.integers(0, size))
    changes: list[dict[str, Any]] = [
        {},
        {"seats": {"a": first, "c": size - first}},
        {"casting": data.draw(sides)},
        {"casting": data.draw(sides)},
    ]

    deals = [dealt(playing({"lobby": lobby, **change}, seed=seed)) for change in changes]

    assert all(deal == deals[0] for deal in deals)


def test_the_most_specific_key_decides() -> None:
    cast: dict[str, JsonValue] = {"Sheriff": "a", "random_town": "b", "town investigative": "c", "town": "a", "*": "b"}
    experiment = playing({"lobby": [*LOTTERIES, "sheriff"], "casting": cast}, conversations=60)
    slots, seen = role_list([*LOTTERIES, "sheriff"]), Counter[str]()

    for task, _ in games(experiment):
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


def casts(experiment: Experiment) -> list[dict[str, str]]:
    """Of each game, the agent definition that plays each role."""
    return [
        {player.role: agent.definition for agent, player in zip(task.agents, game.state.players, strict=True)}
        for task, game in games(experiment)
    ]


def test_a_list_takes_turns_by_game_and_two_lists_meet_in_all_combinations() -> None:
    cast: dict[str, JsonValue] = {"town": ["b", "c"], "mafia": ["a", "b"]}
    played = casts(playing({"lobby": "classic-7", "casting": cast}))
    swapped = casts(playing({"lobby": "classic-7", "casting": dict(reversed(cast.items()))}))

    sides = [({game["godfather"], game["framer"]}, {game["sheriff"], game["jailor"]}) for game in played]

    assert all(len(mafia) == len(town) == 1 for mafia, town in sides)
    assert Counter((*mafia, *town) for mafia, town in sides) == {(m, t): 3 for m in "ab" for t in "bc"}
    assert played == swapped, "the order of keys is no part of an experiment's identity"


REFUSED_CASTINGS = (
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


REFUSED_TOURNAMENTS = (
    "pairings: {}",
    "pairings: {round_robin: all, versus_baseline: {baseline: a, against: [b]}}",
    "pairings: {round_robin: [a]}",
    "pairings: {round_robin: []}",
    "pairings: {round_robin: 3}",
    "pairings: {round_robin: [a, d, a]}",
    "pairings: {versus_baseline: {baseline: e, against: [a, d]}}",
    "pairings: {versus_baseline: {baseline: a, against: [a, b]}}",
    "pairings: {round_robin: all, neutral: wolf}",
    "pairings: {round_robin: all, neutral: mafia}",
    "pairings: {round_robin: all}, seats: {a: 7}",
    "pairings: {round_robin: all}, casting: {mafia: a, town: b}",
)


def test_castings_and_tournaments_that_cannot_be_meant_are_refused_with_reason_and_key(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert {game: refused(tmp_path, f"{game}\n") for game in REFUSED_CASTINGS} == snapshot
    found = {game: refused(tmp_path, f"game: {{lobby: classic-7, {game}}}\n") for game in REFUSED_TOURNAMENTS}
    assert found == snapshot
    assert refused(tmp_path, "game: {casting: {*: a}}\n")[0].endswith(" begins with * or &")
    # `random mafia` never becomes the Godfather where he has a slot, who so needs no cast elsewhere.
    own_slot = "game: {lobby: [sheriff, godfather, mafia killing], casting: {godfather: a, mafioso: b, town: c}}\n"
    assert isinstance(read(tmp_path, own_slot), Loaded)


def test_a_grid_over_castings_leaves_out_whom_a_combination_does_not_need(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    rest = (
        "  - {agent_id: d, role: player, model: wild, role_specific_config: {speak_after_within_round: [a, b]}}\n"
        "game: {lobby: classic-7, casting: {mafia: a, town: d}}\n_grid: {sweep: {game.casting.mafia: [a, b, c]}}\n"
    )

    found = grid(tmp_path, rest)

    assert [[agent.agent_id for agent in one.agent_definitions] for one in experiments(found)] == [
        ["a", "d"],
        ["b", "d"],
        ["c", "d"],
    ]
    models = [list(one.model_definitions) for one in experiments(found)]
    assert models == [["wise", "wild"], ["wild"], ["wise", "wild"]]
    waits = [one.agent_definitions[1].role_specific_config.speak_after_within_round for one in experiments(found)]
    assert waits == [("a",), ("b",), ()]
    assert found.combinations[2].loaded.locate(("agent_definitions", 0, "temperature")).endswith("trial.yaml:10")
    assert refused(tmp_path, rest.replace("[a, b, c]", "[a, b]")) == snapshot


# Tournaments.


def castings(found: Grid) -> list[object]:
    return [one.settings_as(GameConfig).casting for one in experiments(found)]


def test_round_robin_has_every_ordered_pair_on_both_sides_of_every_deal(tmp_path: Path) -> None:
    found = grid(tmp_path, f"game: {{lobby: {NEUTRALS}, pairings: {{round_robin: [a, b, c]}}}}\n")
    pairs = [*permutations("abc", 2)]

    assert castings(found) == [{"mafia": m, "town": t, "neutral": t} for m, t in pairs]
    assert [dict(one.values) for one in found.combinations] == [{"mafia": m, "town": t} for m, t in pairs]
    assert [one.slug for one in found.combinations] == [f"mafia-{m}_town-{t}" for m, t in pairs]
    deals = [dealt(one) for one in experiments(found)]
    assert all(deal == deals[0] for deal in deals)
    # Of each deal, each player of a pair has every seat, name and role once.
    held: dict[frozenset[str], Counter[tuple[object, ...]]] = {}
    for one in experiments(found):
        pair = frozenset(agent.agent_id for agent in one.agent_definitions)
        for task, _ in games(one):
            places = ((task.index, agent.definition, agent.seat, agent.agent_id, agent.slot) for agent in task.agents)
            held.setdefault(pair, Counter()).update(places)
    assert [set(places.values()) for places in held.values()] == [{1}] * 3
    assert [len(places) for places in held.values()] == [4 * 5 * 2] * 3


def test_a_pair_is_an_experiment_of_its_own_players_alone(tmp_path: Path) -> None:
    game = "game: {lobby: classic-7, pairings: {round_robin: all}}\n"
    newcomer = "  - {agent_id: d, role: player, model: wild, temperature: 0.1}\n"

    three, four = grid(tmp_path, game), grid(tmp_path, newcomer + game)

    assert (len(three.combinations), len(four.combinations)) == (6, 12)
    # What was played stays what it is when the file gets another entrant.
    assert {one.slug for one in three.combinations} < {one.slug for one in four.combinations}
    first = experiments(three)[0]
    assert [agent.agent_id for agent in first.agent_definitions] == ["a", "b"]
    assert list(first.model_definitions) == ["wise", "wild"]
    assert first.settings_as(GameConfig).pairings is None


def test_who_meets_whom_and_who_plays_the_neutral_roles(tmp_path: Path) -> None:
    versus = "versus_baseline: {baseline: b, against: [c, a]}"
    met = (("c", "b"), ("b", "c"), ("a", "b"), ("b", "a"))
    table = {
        f"lobby: classic-7, pairings: {{{versus}}}": [{"mafia": m, "town": t} for m, t in met],
        f"lobby: {NEUTRALS}, pairings: {{{versus}, neutral: mafia}}": [
            {"mafia": m, "town": t, "neutral": m} for m, t in met
        ],
        f"lobby: {NEUTRALS}, pairings: {{round_robin: [b, c], neutral: a}}": [
            {"mafia": m, "town": t, "neutral": "a"} for m, t in (("b", "c"), ("c", "b"))
        ],
    }

    assert {game: castings(grid(tmp_path, f"game: {{{game}}}\n")) for game in table} == table


SHIPPED = sorted((Path(__file__).parents[3] / "experiments").glob("tos_*.yaml"))


def test_no_entrant_of_a_shipped_tournament_plays_the_neutral_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAC_RUNNER_API_KEY", "key")
    seen = 0
    for file in SHIPPED:
        for profile in (None, *yaml.safe_load(file.read_text(encoding="utf-8")).get("profiles", ())):
            found = load(file, profile=profile)
            casts = castings(found) if isinstance(found, Grid) else []
            neutrals = [cast.get("neutral") for cast in casts if isinstance(cast, dict)]
            entrants = {cast[side] for cast in casts if isinstance(cast, dict) for side in ("mafia", "town")}
            seen += any(neutrals)
            assert len({*neutrals}) <= 1, (file, profile)
            assert entrants.isdisjoint(neutrals), (file, profile)
    assert seen >= 5


def test_a_tournament_multiplies_with_a_grid_of_ones_own(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    game = "game: {lobby: classic-7, pairings: {round_robin: all}}\n"
    derive = "derive: {experiment_metadata.description: 'seed {seed}'}"

    found = grid(tmp_path, f"{game}_grid: {{sweep: {{game.lobby: [classic-7, {NEUTRALS}], seed: [1, 2]}}, {derive}}}\n")

    assert found.columns == ("game.lobby", "seed", "mafia", "town")
    assert ["neutral" in str(casting) for casting in castings(found)] == [False] * 12 + [True] * 12
    assert experiments(found)[6].experiment_metadata.description == "seed 2"
    assert len(grid(tmp_path, f"{game}_grid: {{{derive}}}\n").combinations) == 6
    assert refused(tmp_path, f"{game}_grid: {{broadcast: {{mafia: {{paths: [seed], values: [1]}}}}}}\n") == snapshot


def test_a_tournament_needs_both_sides_in_every_deal_and_players_that_differ(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    lobby = "[any, any, any, sheriff]"
    assert refused(tmp_path, f"game: {{lobby: {lobby}, pairings: {{round_robin: all}}}}\n") == snapshot
    # How many requests its engine takes makes no other player of it.
    twin = "  - {agent_id: twin, role: player, model: wise}\n"
    spare = "model_definitions.spare={backend: scripted, scripted_config: {policy: heuristic, capacity: 5}}"
    served = (spare, "agent_definitions.twin.model=spare")
    game = f"{twin}game: {{lobby: classic-7, pairings: {{round_robin: all}}}}\n"
    assert refused(tmp_path, game, overrides=served) == snapshot


@pytest.mark.parametrize(
    ("roles", "lobby", "why"),
    [
        ("[sheriff, godfather, mafioso]", "social-7", "unknown roles: doctor, escort, jester, lookout, vigilante"),
        (
            "[executioner, godfather, mafioso, sheriff]",
            "[executioner, godfather, sheriff]",
            "one of its roles may become 'jester', which is no role of this game",
        ),
    ],
)
def test_a_lobby_is_refused_where_roles_of_it_are_not_those_of_the_game(
    tmp_path: Path, roles: str, lobby: str, why: str
) -> None:
    (refusal,) = refused(tmp_path, f"game: {{roles: {roles}, lobby: {lobby}}}\n")

    assert "game.lobby: " in refusal
    assert why in refusal
