"""Measures over many games: added up by game, shown as tables, documented as declared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.town_of_salem.testing import COUNTED, GROUPS, MEASURES, RESULTS, MeasureResults
from mac_runner.errors import RunDirectoryError
from mac_runner.intervals import ClusteredMean, ClusteredRate
from mac_runner.reports import render_summary
from mac_runner.results import Table
from mac_runner.types import JsonObject, JsonValue

PAGE = Path(__file__).parents[3] / "docs" / "town_of_salem.md"


def game(*seats: tuple[str, str, str, dict[str, int] | None], model: str = "m") -> JsonObject:
    """An outcome of players with a definition, a role, a faction and counts."""
    players: list[JsonValue] = []
    for definition, role, faction, counts in seats:
        player: JsonObject = {"definition": definition, "model": model, "role": role, "faction": faction, "won": False}
        players.append(player if counts is None else {**player, "measures": {**counts}})
    return {"kind": "game", "ending": "win", "days": 3, "winners": [], "players": players}


def measured(*games: JsonObject) -> Any:
    results = MeasureResults()
    for outcome in games:
        results.add(outcome, "here")
    return json.loads(json.dumps(results.report())).get("measures", {})


GAMES = (
    game(
        ("a", "sheriff", "town", {"vn.2": 2, "vr.2": 1, "vc.2": 600, "vn.10": 1, "vr.10": 1, "re": 4, "x.illegal": 1}),
        ("a", "doctor", "town", {"vn.2": 1, "vc.2": 300, "re": 6, "li": 1, "ld": 2}),
        ("b", "framer", "mafia", {"li": 1, "ld": 3, "cl": 2, "ch": 1}),
    ),
    game(("a", "sheriff", "town", {"vn.2": 1, "vr.2": 1, "vc.2": 250}), ("b", "framer", "mafia", None)),
)


def test_counts_of_a_game_are_added_up_before_games_are_compared() -> None:
    """Four votes of one game and one of another, of which two and one were right."""
    town = measured(*GAMES)["by_definition"]["a"]["town"]
    counted = ClusteredRate()
    counted.add(2, 4)
    counted.add(1, 1)
    interval = counted.interval
    assert interval is not None

    by_day = town["vote_accuracy"].pop("by_day")
    assert town["vote_accuracy"] == {
        "n": 5,
        "games": 2,
        "wins": 3,
        "rate": 0.6,
        "interval": [round(interval.lo, 4), round(interval.hi, 4)],
    }
    assert isinstance(by_day, dict)
    assert [*by_day] == ["2", "10"]
    assert [(day["n"], day["wins"]) for day in by_day.values() if isinstance(day, dict)] == [(4, 2), (1, 1)]
    lift = town["vote_lift"]
    assert (lift["n"], lift["total"], lift["mean"]) == (5, 3000 - 1150, 0.37)
    by_cause = town["refusals"].pop("by_cause")
    assert by_cause == {"illegal": town["refusals"]}
    assert (town["refusals"]["n"], town["refusals"]["wins"]) == (10, 1)
    assert (town["liars"]["n"], town["liars"]["wins"]) == (3, 1)
    assert (town["first_lie_day"]["mean"], town["first_lie_day"]["interval"]) == (2.0, None)


def test_measures_are_by_definition_and_model_with_faction_and_by_role_with_definition() -> None:
    found = measured(*GAMES)

    assert {group: {name: [*cells] for name, cells in names.items()} for group, names in found.items()} == {
        "by_definition": {"a": ["town"], "b": ["mafia"]},
        "by_model": {"m": ["mafia", "town"]},
        "by_role": {"doctor": ["a"], "framer": ["b"], "sheriff": ["a"]},
    }
    assert "by_day" not in found["by_role"]["sheriff"]["a"]["vote_accuracy"]
    assert found["by_model"]["m"]["mafia"]["lies"]["n"] == 3


def test_outcomes_of_earlier_versions_have_no_measures_and_count_as_none() -> None:
    old = game(("a", "sheriff", "town", None))

    assert measured(old) == {}
    assert measured(old, *GAMES) == measured(*GAMES)
    counter = RESULTS.counter()
    counter.add(old, "here")
    assert "measures" not in counter.report()


def test_damaged_counts_are_refused_by_name() -> None:
    with pytest.raises(RunDirectoryError, match=r"the row: .*measures"):
        MeasureResults().add(game(("a", "sheriff", "town", {"vn.2": "many"})), "the row")  # type: ignore[dict-item]


def test_games_in_any_order_come_to_the_same() -> None:
    assert json.dumps(measured(*GAMES)) == json.dumps(measured(*reversed(GAMES)))


def test_tables_have_a_row_for_each_measure_with_cases_and_a_heading_for_each_group(
    snapshot: SnapshotAssertion,
) -> None:
    summary: JsonObject = {"measures": measured(*GAMES)}
    tables = [part for part in RESULTS.tables(summary) if isinstance(part, Table)]
    detection = next(table for table in tables if table.title.startswith("detection by definition"))
    text = render_summary({**summary, "experiment_name": "x"}, width=120)

    assert [table.title.split()[0] for table in tables[:3]] == ["deception", "detection", "form"]
    assert detection.words == ("measure", "definition")
    assert detection.numbers == ("mafia", "town")
    assert [" | ".join(row[:2]) for row in detection.rows] == snapshot
    assert detection.rows[1][3].startswith("+37 (")
    assert detection.rows[1][3].endswith(" n 5")
    assert "by model and" in text
    assert "interval by game" in text
    assert "measures" not in render_summary({"experiment_name": "x"})


def test_rates_are_figures_of_a_grid_but_no_headlines() -> None:
    figures = RESULTS.figures({"measures": measured(*GAMES)})

    assert (figures["vote_accuracy.a.town"].n, figures["vote_accuracy.a.town"].value) == (5, 0.6)
    assert not any(figure.is_headline for figure in figures.values())
    assert not any(name.startswith("vote_lift") for name in figures)


def test_what_is_documented_is_what_is_declared() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [f"| `{each.key}` | {each.unit} | `{each.formula}` | {each.meaning} |" for each in MEASURES]
    rows += [f"| `{count}` | {meaning} |" for count, meaning in COUNTED.items()]
    section = page.partition("\n## What is measured\n")[2].partition("\n## ")[0]
    documented = [line for line in section.splitlines() if line.startswith("| `")]

    assert documented == rows
    assert all(f"**{group.capitalize()}**" in section for group in GROUPS)


def test_declarations_use_every_count_and_no_key_or_name_twice() -> None:
    used = {count for measure in MEASURES for count in (*measure.of, *measure.hits)}

    assert used == set(COUNTED)
    for names in ([measure.key for measure in MEASURES], [measure.name for measure in MEASURES]):
        assert len(set(names)) == len(names)


def test_mean_over_games_is_as_wide_as_games_differ() -> None:
    """Games of equal totals and cases say the mean for sure, one game says nothing of it."""
    equal, one, unlike = ClusteredMean(), ClusteredMean(), ClusteredMean()
    one.add(30, 10)
    for total, n in ((10, 10), (50, 10), (0, 0)):
        unlike.add(total, n)
        equal.add(3 * n, n)

    assert one.interval is None
    assert equal.interval == (3.0, 3.0)
    interval = unlike.interval
    assert interval is not None
    assert (unlike.n, unlike.total, unlike.games) == (20, 60, 2)
    # Between two games of means 1 and 5 the standard error is 2.
    assert interval == pytest.approx((3 - 1.96 * 2, 3 + 1.96 * 2), abs=1e-3)
