"""`game.pairings`: a tournament is a grid of castings, over the same deals on both sides."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from mac_runner.config import Experiment, Grid
from mac_runner.environments.town_of_salem import GameConfig
from mac_runner.environments.town_of_salem.testing import TownOfSalem
from mac_runner.plan import plan_tasks
from tests.environments.town_of_salem.test_casting import dealt, read, refused

NEUTRALS = "[sheriff, any, doctor, godfather, random mafia]"


def grid(tmp_path: Path, rest: str, **flags: object) -> Grid:
    found = read(tmp_path, rest, **flags)
    assert isinstance(found, Grid)
    return found


def experiments(found: Grid) -> list[Experiment]:
    return [one.loaded.experiment for one in found.combinations]


def castings(found: Grid) -> list[object]:
    return [one.settings_as(GameConfig).casting for one in experiments(found)]


def test_round_robin_has_every_ordered_pair_on_both_sides_of_every_deal(tmp_path: Path) -> None:
    found = grid(tmp_path, f"game: {{lobby: {NEUTRALS}, pairings: {{round_robin: [a, b, c]}}}}\n")

    assert castings(found) == [{"mafia": m, "town": t, "neutral": t} for m, t in permutations("abc", 2)]
    assert [dict(one.values) for one in found.combinations] == [
        {"mafia": m, "town": t} for m, t in permutations("abc", 2)
    ]
    assert [one.slug for one in found.combinations] == [f"mafia-{m}_town-{t}" for m, t in permutations("abc", 2)]
    deals = [dealt(one) for one in experiments(found)]
    assert all(deal == deals[0] for deal in deals)
    # Of each deal, each player of a pair has every seat, name and role once.
    held: dict[frozenset[str], Counter[tuple[object, ...]]] = {}
    for one in experiments(found):
        environment = TownOfSalem(one)
        for task in plan_tasks(one, environment.lineup):
            pair = frozenset(agent.agent_id for agent in one.agent_definitions)
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
    assert ([agent.agent_id for agent in first.agent_definitions], list(first.model_definitions)) == (
        ["a", "b"],
        ["wise", "wild"],
    )
    assert first.settings_as(GameConfig).pairings is None


def test_who_meets_whom_and_who_plays_the_neutral_roles(tmp_path: Path) -> None:
    versus = "versus_baseline: {baseline: b, against: [c, a]}"
    table = {
        f"lobby: classic-7, pairings: {{{versus}}}": [
            {"mafia": m, "town": t} for m, t in (("c", "b"), ("b", "c"), ("a", "b"), ("b", "a"))
        ],
        f"lobby: {NEUTRALS}, pairings: {{{versus}, neutral: mafia}}": [
            {"mafia": m, "town": t, "neutral": m} for m, t in (("c", "b"), ("b", "c"), ("a", "b"), ("b", "a"))
        ],
        f"lobby: {NEUTRALS}, pairings: {{round_robin: [b, c], neutral: a}}": [
            {"mafia": m, "town": t, "neutral": "a"} for m, t in (("b", "c"), ("c", "b"))
        ],
    }

    assert {game: castings(grid(tmp_path, f"game: {{{game}}}\n")) for game in table} == table


def test_a_tournament_multiplies_with_a_grid_of_ones_own(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    game = "game: {lobby: classic-7, pairings: {round_robin: all}}\n"
    derive = "derive: {experiment_metadata.description: 'seed {seed}'}"

    found = grid(tmp_path, f"{game}_grid: {{sweep: {{game.lobby: [classic-7, {NEUTRALS}], seed: [1, 2]}}, {derive}}}\n")

    assert found.columns == ("game.lobby", "seed", "mafia", "town")
    assert len(found.combinations) == 2 * 2 * 6
    assert ["neutral" in (one.settings_as(GameConfig).casting or {}) for one in experiments(found)] == (
        [False] * 12 + [True] * 12
    )
    assert experiments(found)[6].experiment_metadata.description == "seed 2"
    assert len(grid(tmp_path, f"{game}_grid: {{{derive}}}\n").combinations) == 6
    assert refused(tmp_path, f"{game}_grid: {{broadcast: {{mafia: {{paths: [seed], values: [1]}}}}}}\n") == snapshot


REFUSED = (
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


def test_tournaments_that_cannot_be_meant_are_refused_with_reason_and_key(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    assert {game: refused(tmp_path, f"game: {{lobby: classic-7, {game}}}\n") for game in REFUSED} == snapshot


def test_a_tournament_needs_both_sides_in_every_deal_and_players_that_differ(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    twin = "  - {agent_id: twin, role: player, model: wise}\n"

    lobby = "[any, any, any, sheriff]"
    assert refused(tmp_path, f"game: {{lobby: {lobby}, pairings: {{round_robin: all}}}}\n") == snapshot
    # How many requests its engine takes makes no other player of it.
    spare = "model_definitions.spare={backend: scripted, scripted_config: {policy: heuristic, capacity: 5}}"
    served = (spare, "agent_definitions.twin.model=spare")
    game = f"{twin}game: {{lobby: classic-7, pairings: {{round_robin: all}}}}\n"
    assert refused(tmp_path, game, overrides=served) == snapshot
