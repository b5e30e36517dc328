"""The combinations of a grid compared: over the same deals, by who was dealt to which side."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from random import Random
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.compared import matched_p
from mac_runner.environments.town_of_salem.testing import RESULTS, compare_games
from mac_runner.results import PlayedCombination, Table, section
from mac_runner.types import JsonObject, JsonValue
from tests.kit import game_player

ROLES = {"Ann": "sheriff", "Bob": "doctor", "Cid": "jester", "Dan": "mafioso", "Eve": "godfather"}
SIDES = {"sheriff": "town", "doctor": "town", "jester": "neutral", "mafioso": "mafia", "godfather": "mafia"}
Winner = Callable[[int], str]


Shares = dict[tuple[JsonValue, str], int]
"""By player and side, how many of a hundred turns end with the default act."""


def outcome(number: int, cast: JsonObject, winner: str, defaults: Shares | None = None) -> JsonObject:
    """A game whose deal follows from its number. One of the Town ends it as a neutral, and was dealt to the Town."""
    names = Random(number).sample(sorted(ROLES), len(ROLES))
    players: list[JsonValue] = [
        game_player(
            agent=name,
            definition=cast[SIDES[role]],
            model=f"{cast[SIDES[role]]}-model",
            role=role,
            final_role="survivor" if role == "sheriff" else role,
            faction="neutral" if role == "sheriff" else SIDES[role],
            won=winner == SIDES[role] and role != "sheriff",
            measures={} if defaults is None else {"tu": 100, "de": defaults[cast[SIDES[role]], SIDES[role]]},
        )
        for name, role in zip(names, ROLES.values(), strict=True)
    ]
    is_won = winner != "nobody"
    return {
        "kind": "game",
        "ending": "win" if is_won else "draw",
        "days": 3,
        "winners": [winner] if is_won else [],
        "players": players,
    }


def played(
    cast: JsonObject,
    winner: Winner,
    *,
    games: Sequence[int] = range(40),
    values: JsonObject | None = None,
    defaults: Shares | None = None,
) -> PlayedCombination:
    """A combination of forty planned games, of which `games` have finished."""
    outcomes = ((place, outcome(place, cast, winner(place), defaults), f"game {place}") for place in games)
    return PlayedCombination(f"slug-{cast}-{values}", {"game.casting": cast, **(values or {})}, 40, outcomes)


def cast(mafia: str, town: str, neutral: str | None = None) -> JsonObject:
    return {"mafia": mafia, "town": town, "neutral": neutral or town}


def mafia_wins_below(limit: int, of: int = 10) -> Winner:
    return lambda number: "mafia" if number % of < limit else "town"


def tournament(games: Sequence[int] = range(40), undecided: int = 0) -> list[PlayedCombination]:
    """Each of three plays both sides against the others: the Mafia of a wins eight of ten, of b five, of c two.

    Of each twenty games, the last `undecided` nobody wins.
    """

    def winner(mafia: str) -> Winner:
        decided = mafia_wins_below({"a": 8, "b": 5, "c": 2}[mafia])
        return lambda number: "nobody" if number % 20 >= 20 - undecided else decided(number)

    return [played(cast(mafia, town), winner(mafia), games=games) for mafia, town in permutations("abc", 2)]


def rows(compared: JsonObject, key: str) -> list[Any]:
    found = section(compared, "paired")["rows"] if key == "differences" else compared[key]
    assert isinstance(found, list)
    return found


def test_two_players_who_swap_sides_are_compared_on_each_and_on_both_over_the_same_deals() -> None:
    swapped = [
        played(cast("a", "b"), mafia_wins_below(7)),
        played(cast("b", "a"), mafia_wins_below(4), games=range(2, 40)),
    ]
    compared = compare_games(swapped, has_stats=True)
    mafia, town, both = rows(compared, "differences")

    assert [row["figure"] for row in (mafia, town, both)] == ["mafia", "town", "both"]
    assert {(row["first"], row["second"], row["given"]) for row in (mafia, town, both)} == {("a", "b", "each other")}
    assert {(row["n"], row["left_out"]) for row in (mafia, town, both)} == {(38, 2)}
    # Of ten deals a's Mafia wins seven and b's four; a's Town the other six and b's three. Two deals are left out.
    assert (mafia["cases"], mafia["ahead"]) == ([38, 38], [12, 0])
    assert mafia["values"] == pytest.approx([26 / 38, 14 / 38], abs=1e-4)
    assert (town["cases"], town["ahead"]) == ([38, 38], [12, 0])
    assert town["values"] == pytest.approx([24 / 38, 12 / 38], abs=1e-4)
    assert (both["cases"], both["ahead"], both["values"]) == ([76, 76], [12, 0], [0.6579, 0.3421])
    assert [row["test"] for row in (mafia, town, both)] == ["score", "score", "bootstrap"]
    assert mafia["p"] == pytest.approx(matched_p(0, 12), rel=0.01)
    assert compared["ratings"] == []


@pytest.mark.ci
def test_players_of_one_side_are_compared_against_equal_opponents_alone() -> None:
    """Neutrals go with the Town here, and so change when the Town does."""
    differences = rows(compare_games(tournament(), True), "differences")
    found = {(row["figure"], row["first"], row["second"], row["given"]) for row in differences}

    assert found == {
        *{(side, *pair, "each other") for side in ("mafia", "town", "both") for pair in ("ab", "ac", "bc")},
        *{("mafia", *pair, f"town {town}") for pair, town in (("ab", "c"), ("ac", "b"), ("bc", "a"))},
        *{("town", *pair, f"mafia {mafia}") for pair, mafia in (("ab", "c"), ("ac", "b"), ("bc", "a"))},
    }


@pytest.mark.ci
def test_ratings_of_a_tournament_rank_each_side_and_say_what_they_leave_out() -> None:
    (ratings,) = rows(compare_games(tournament(range(39), undecided=1), True), "ratings")
    players = rows(ratings, "players")
    of_mafia = {row["player"]: row for row in players if row["side"] == "mafia"}
    of_town = [row["rating"] for row in players if row["side"] == "town"]

    counts = {"pairings": 6, "deals": 39, "games": 6 * 38, "undecided": 6, "left_out": 6}
    assert {key: ratings[key] for key in counts} == counts
    assert [of_mafia[name]["rate"] for name in "abc"] == pytest.approx([31 / 38, 19 / 38, 8 / 38], abs=0.03)
    assert of_town == pytest.approx([0, 0, 0], abs=0.02)


def test_settings_are_compared_one_at_a_time_over_the_deals_of_all_seeds() -> None:
    grid = [
        played(cast("a", "a"), mafia_wins_below(strength), values={"game.notes": notes, "heat": heat, "seed": seed})
        for notes, strength in ((True, 6), (False, 3))
        for heat in (0.1, 0.9)
        for seed in (1, 2)
    ]
    found = rows(compare_games(grid, True), "differences")

    assert {(row["first"], row["second"], row["given"]) for row in found} == {
        ("notes true", "notes false", "heat 0.1"),
        ("notes true", "notes false", "heat 0.9"),
        ("heat 0.1", "heat 0.9", "notes true"),
        ("heat 0.1", "heat 0.9", "notes false"),
    }
    assert {row["n"] for row in found} == {80}
    ahead = {row["figure"]: row["ahead"] for row in found if (row["first"], row["given"]) == ("notes true", "heat 0.1")}
    assert ahead == {"town": [0, 24], "mafia": [24, 0], "neutral": [0, 0]}


def test_a_setting_that_decides_which_sides_there_are_is_named_in_each_row() -> None:
    def combination(lobby: str, heat: float) -> PlayedCombination:
        one = played(cast("a", "a"), mafia_wins_below(3), values={"game.lobby": lobby, "heat": heat})
        if lobby == "full":
            return one
        whole: list[Any] = [*one.outcomes]
        outcomes = [
            (number, {**outcome, "players": [seat for seat in outcome["players"] if seat["role"] != "jester"]}, where)
            for number, outcome, where in whole
        ]
        return one._replace(outcomes=outcomes)

    grid = [combination(lobby, heat) for lobby in ("full", "two sides") for heat in (0.1, 0.9)]
    found = rows(compare_games(grid, True), "differences")

    assert {row["given"].rpartition("; ")[2] for row in found} == {"lobby full", "lobby two sides"}


def test_standings_need_no_library_and_count_games_of_a_deal_together() -> None:
    grid = [played(cast("a", town), mafia_wins_below(5)) for town in "abc"]
    compared = compare_games(grid, has_stats=False)
    standings = {(row["player"], row["side"]): row for row in rows(compared, "standings")}
    alone = compare_games([played(cast(name, "b"), mafia_wins_below(5)) for name in "ac"], False)

    assert (compared["paired"], compared["ratings"]) == ({"of": "game", "unit": "deal", "rows": None}, None)
    assert set(standings) == {("a", "mafia"), *((name, side) for name in "abc" for side in ("town", "neutral"))}
    mafia = standings["a", "mafia"]
    assert (mafia["games"], mafia["deals"], mafia["wins"], mafia["rate"]) == (120, 40, 60, 0.5)
    # Three times as many games of the same deals that went the same way tell no more than once as many.
    once = {row["player"]: row["interval"] for row in rows(alone, "standings")}["a"]
    assert mafia["interval"] == pytest.approx(once, abs=0.005)


def test_nothing_to_compare_is_nothing_and_games_of_other_deals_are_not_compared() -> None:
    one, unplayed = cast("a", "b"), played(cast("b", "a"), mafia_wins_below(5), games=())

    for grid in ([], [played(one, mafia_wins_below(5))], [played(one, mafia_wins_below(5)), unplayed]):
        assert compare_games(grid, True) == {}
    others = [played(one, mafia_wins_below(7)), played(cast("b", "a"), mafia_wins_below(4), games=range(90, 99))]
    assert rows(compare_games(others, True), "differences") == []


@pytest.mark.ci
def test_tables_of_comparisons_say_their_unit_and_what_they_left_out(snapshot: SnapshotAssertion) -> None:
    parts = [*RESULTS.comparison_tables(compare_games(tournament(range(39)), True))]
    tables = [part for part in parts if isinstance(part, Table)]
    notes = [part for part in parts if isinstance(part, str)]

    assert [*(table.title for table in tables), *(re.sub(r"[+-]\d\.\d+", "±", note) for note in notes)] == snapshot
    (mafia, *_) = [row for row in tables[1].rows if row[3] == "town c"]
    assert mafia[:7] == ("mafia", "a", "b", "town c", "39", "1", "82.0 : 51.3")
    assert mafia[7].startswith("+30.8 (+")
    assert [*RESULTS.comparison_tables({})] == []


def test_few_deals_are_said_to_make_p_too_small() -> None:
    def notes(deals: int) -> str:
        pair = [played(cast(*sides), mafia_wins_below(5), games=range(deals)) for sides in ("ab", "ba")]
        parts = RESULTS.comparison_tables(compare_games(pair, has_stats=True))
        return "\n".join(part for part in parts if isinstance(part, str))

    assert "Some rows have 29 deals only: with fewer than 30, intervals are too narrow and p too small." in notes(29)
    assert "too small" not in notes(30)


def test_rows_say_how_often_each_player_took_its_default_where_one_did_so_often() -> None:
    for seed in range(12):
        chance = Random(seed)
        most = chance.choice([5, 6, 71])
        defaults: Shares = {(name, side): chance.randint(0, most) for name in "abx" for side in ("mafia", "town")}
        defaults |= {("x", "neutral"): 0, ("a", chance.choice(["mafia", "town"])): most}
        pairs = [("a", "b"), ("b", "a"), ("a", "x")]
        combinations = [
            played(cast(m, t, "x"), mafia_wins_below(5), games=range(6), defaults=defaults) for m, t in pairs
        ]
        compared = compare_games(combinations, has_stats=True)

        def share(name: str, side: str, found: Shares = defaults) -> float:
            sides = ("mafia", "town") if side == "both" else (side,)
            # The Mafia and the Town have two players each.
            return sum(found[name, each] for each in sides) / len(sides) / 100

        for row in rows(compared, "standings"):
            assert row["defaults"] == pytest.approx(share(row["player"], row["side"])), (seed, row)
        for row in rows(compared, "differences"):
            assert row["defaults"] == pytest.approx([share(row[each], row["figure"]) for each in ("first", "second")])
        tables = [part for part in RESULTS.comparison_tables(compared) if isinstance(part, Table)]
        assert ["defaults" in table.numbers for table in tables[:2]] == [most > 5] * 2
        assert all(len(row) == len(table.words) + len(table.numbers) for table in tables for row in table.rows)


def test_the_comparison_says_who_plays_the_neutral_roles() -> None:
    for neutrals, said in (("xx", "by x in all"), ("ba", "by the player of the Town"), ("ab", "of the Mafia")):
        pairs = [cast(m, t, n) for m, t, n in zip("ab", "ba", neutrals, strict=True)]
        compared = compare_games([played(one, mafia_wins_below(5)) for one in pairs], has_stats=False)

        assert said in str(compared["neutral"])
        assert any(said in part for part in RESULTS.comparison_tables(compared) if isinstance(part, str))


@pytest.mark.ci
def test_memory_is_a_few_bytes_a_game() -> None:
    one = outcome(1, cast("a", "b"), "town")

    def many(count: int) -> Iterator[tuple[int, JsonObject, str]]:
        yield from ((number, one, "game") for number in range(count))

    count = 10_000
    tracemalloc.start()
    try:
        compare_games([PlayedCombination("x", {}, count, many(count))], has_stats=False)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 32 * count


@pytest.mark.ci
def test_deals_that_are_wholeseveral_times_alike_say_no_more_than_once() -> None:
    def compared(times: int) -> JsonObject:
        deals = [deal for deal in range(20) for _ in range(times)]
        players = [("a", "b", 7), ("b", "a", 4), ("a", "c", 5), ("c", "a", 2), ("b", "c", 6)]
        found = [played(cast(one, other), mafia_wins_below(limit), games=deals) for one, other, limit in players]
        return compare_games(found, has_stats=True)

    once, thrice = compared(1), compared(3)
    for key in ("values", "difference", "interval", "ahead", "p", "n"):
        assert [row[key] for row in rows(once, "differences")] == [row[key] for row in rows(thrice, "differences")]
    (rating, repeated) = (rows(each, "ratings")[0] for each in (once, thrice))
    assert (repeated["deals"], repeated["games"]) == (rating["deals"], 3 * rating["games"])


def test_a_deal_of_which_a_game_failed_is_left_out_of_a_paired_difference() -> None:
    deals = [deal for deal in range(20) for _ in range(2)]
    pair = [
        played(cast("a", "b"), mafia_wins_below(7), games=deals),
        played(cast("b", "a"), mafia_wins_below(4), games=deals[1:]),
    ]

    for row in rows(compare_games(pair, has_stats=True), "differences"):
        assert (row["n"], row["left_out"]) == (19, 1), "deals, not their games"
