"""The results so far: counted from outcomes, as shares of those that have a value."""

from __future__ import annotations

from mac_runner.results import Column, Columns
from mac_runner.status import Tally
from mac_runner.types import JsonObject


def test_headline_columns_of_an_environment_are_counted_and_others_are_not() -> None:
    columns = Columns(
        {
            "winner": Column("words", is_headline=True),
            "right": Column("truth", is_headline=True),
            "days": Column("number"),
        },
        lambda outcome: {"winner": outcome["w"], "right": outcome["r"], "days": 3},  # type: ignore[dict-item]
    )
    tally = Tally(columns)
    for winners, right in ((["mafia"], True), (["mafia", "neutral"], None), (["town"], False), (["mafia"], None)):
        tally.add({"w": [*winners], "r": right})

    assert tally.text().partition("mafia ")[2] == "75%, neutral 25%, town 25%, right 50%"


def test_outcomes_without_columns_are_counted_by_their_winners_and_truths() -> None:
    tally = Tally(None)
    assert tally.text() == ""
    outcomes: list[JsonObject] = [
        {"kind": "werewolf", "winner": "wolves", "days": 3, "is_draw": False, "roles": {"Ann": "wolf"}},
        {"kind": "werewolf", "winner": "village", "days": 4, "is_draw": False, "roles": {}},
    ]
    for outcome in outcomes:
        tally.add(outcome)

    assert tally.text().partition("winner ")[2] == "wolves 50%, village 50%, is_draw 0%"
