"""Wins by side and over all sides: what they count, and how far their intervals hold."""

from __future__ import annotations

from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import GameResults, win_tables
from mac_runner.results import Table, section
from mac_runner.types import JsonObject
from tests.reports.games import game, player


def tables_of(outcomes: list[JsonObject]) -> dict[str, Table]:
    results = GameResults()
    for place, outcome in enumerate(outcomes):
        results.add(outcome, f"game {place}")
    return {part.title: part for part in win_tables(results.report()) if isinstance(part, Table)}


def outcome(players: list[JsonObject], winner: str) -> JsonObject:
    found = game(0, players, winner)["outcome"]
    assert isinstance(found, dict)
    return found


def test_a_definition_counts_once_a_game_on_each_side_that_it_was_dealt_to() -> None:
    """Whatever became of its players: an Amnesiac who joins the Mafia is no player of the Mafia's."""

    def players(town_won: bool) -> list[JsonObject]:
        turned = {**player("amnesiac", "mafia", won=not town_won, definition="a"), "final_role": "mafioso"}
        town = [player(role, "town", won=town_won, definition="a") for role in ("doctor", "sheriff")]
        return [*town, turned, player("godfather", "mafia", won=not town_won, definition="b")]

    results = GameResults()
    for place in range(5):
        results.add(outcome(players(place < 2), "town" if place < 2 else "mafia"), "game")
    wins = section(results.report(), "wins")
    found = {
        (name, side): tuple(section(sides, side)[key] for key in ("n", "games", "wins"))
        for name, sides in ((name, section(section(wins, "by_definition_and_faction"), name)) for name in "ab")
        for side in sides
    }

    assert found == {("a", "neutral"): (5, 5, 3), ("a", "town"): (5, 5, 2), ("b", "mafia"): (5, 5, 3)}
    assert [section(section(wins, "by_definition"), "a")[key] for key in ("n", "games", "wins")] == [15, 5, 7]


def test_every_table_says_its_unit_and_sides_are_mixed_only_where_it_is_said() -> None:
    players = [
        player("doctor", "town", won=True, definition="a"),
        player("doctor", "town", won=True, definition="b", model="m2"),
        player("godfather", "mafia", won=False, definition="a"),
    ]
    tables = tables_of([outcome(players, "town")] * 3)

    assert {title: table.numbers[:3] for title, table in tables.items()} == {
        "wins by faction (n games)": ("n", "wins", "rate"),
        "wins by definition and side (n games)": ("n", "wins", "rate"),
        "wins by model and side (n games)": ("n", "wins", "rate"),
        "wins by role (n players)": ("n", "games", "wins"),
        "wins by definition, over all sides (n players)": ("n", "games", "wins"),
        "wins by model, over all sides (n players)": ("n", "games", "wins"),
    }


@pytest.mark.ci
def test_intervals_of_the_printed_tables_hold_the_truth_as_often_as_they_say() -> None:
    """Teams win together, and a definition has a different number of players on each side in each game."""
    chance, runs = Random(11), 300
    players = {
        (name, side, won): player("role", side, won=won, definition=name)
        for name in "ab"
        for side in ("town", "mafia")
        for won in (True, False)
    }
    covered = {"over all sides": 0, "and side": 0}
    for _ in range(runs):
        outcomes = []
        for _game in range(60):
            town_won = chance.random() < 0.6
            sides = ["town"] * 7 + ["mafia"] * 3
            names = chance.choices("ab", k=10)
            cast = [players[name, side, (side == "town") == town_won] for name, side in zip(names, sides, strict=True)]
            outcomes.append(outcome(cast, "town" if town_won else "mafia"))
        tables = tables_of(outcomes)
        # Of ten players seven are of the Town: they win 0.7 · 0.6 + 0.3 · 0.4 of the time.
        for told, place, truth in (("over all sides", ("a",), 0.54), ("and side", ("a", "town"), 0.6)):
            (table,) = (table for title, table in tables.items() if "definition" in title and told in title)
            (row,) = (row for row in table.rows if row[: len(place)] == place)
            lo, hi = (float(end.rstrip("%")) / 100 for end in row[-2].split(" – "))
            covered[told] += lo <= truth <= hi

    assert all(0.93 <= count / runs <= 0.97 for count in covered.values()), covered
