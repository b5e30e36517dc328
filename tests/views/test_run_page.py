"""The pages of runs: their head, the list of conversations by column, and the filter that chooses some."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.reports import listed
from mac_runner.reports.testing import Listed, words_of
from mac_runner.results import Column, Value
from mac_runner.runs.testing import summary_of
from mac_runner.store import is_grid, read_grid_standing, read_run, read_standing
from mac_runner.store.testing import DoneRow, encode_json
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import IndexColumns, RunPage
from mac_runner.views.testing import column_views, grid_page, index_columns, is_met, parse_filter, run_page, typescript
from tests.cli.lab import ROOT, experiment
from tests.kit import index_row, played

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def page_of(directory: Path) -> RunPage:
    """The page of a run or a grid."""
    if is_grid(directory):
        standing = read_grid_standing(directory)
        begun = {known.slug: read_run(directory / known.slug) for known, found in standing.combinations if found}
        resolved = next(iter(begun.values())).resolved
        return grid_page(standing, resolved, NOW, summaries={slug: summary_of(run) for slug, run in begun.items()})
    contents = read_run(directory)
    how = listed(contents.environment_name)
    return run_page(read_standing(directory), contents.resolved, how, NOW, summary=summary_of(contents))


@pytest.mark.ci
def test_page_of_a_run_has_its_state_its_engines_and_its_results(tmp_path: Path) -> None:
    page = page_of(played(experiment(conversations=2), tmp_path / "run"))

    assert (page.state, page.planned, page.done, page.failed, page.is_live) == ("complete", 2, 2, 0, False)
    assert page.environment == "town_of_salem"
    (engine,) = page.engines
    assert (engine.model, engine.backend, engine.slots) == ("m", "scripted", 8)
    assert engine.requests > 0
    assert engine.latency_s is not None
    facts = {fact.name: fact.text for fact in page.facts}
    assert "%" in facts["wins.town"]
    assert "n 2" in facts["wins.town"]


@pytest.mark.ci
def test_page_of_a_grid_has_its_combinations_with_their_figures(tmp_path: Path) -> None:
    lobbies: list[JsonValue] = ["classic-7", "classic-10"]
    page = page_of(played(experiment(conversations=1, _grid={"sweep": {"game.lobby": lobbies}}), tmp_path / "run"))

    assert [combination.values for combination in page.combinations] == [{"game.lobby": lobby} for lobby in lobbies]
    assert all(combination.done == combination.planned == 1 for combination in page.combinations)
    assert all("wins.town" in combination.figures for combination in page.combinations)


def test_pages_are_compiled_against_the_structs_that_python_sends() -> None:
    committed = (ROOT / "viewer" / "src" / "model.ts").read_text(encoding="utf-8")

    assert committed == typescript(), (
        "run: python -m mac_runner.views.typescript viewer/src/model.ts; then build viewer/"
    )


COLUMNS = {
    "number": Column("number"),
    "status": Column("word"),
    "winner": Column("words"),
    "days": Column("number"),
    "even": Column("truth"),
}
ROW: dict[str, Value] = {"number": 7, "status": "finished", "winner": ["town", "Jester"], "days": 5, "even": True}


def test_filters_choose_what_the_page_chooses() -> None:
    expected = {
        "": True,
        "days>4": True,
        "days>5": False,
        "days>=5 days<6 days!=4": True,
        "days=4|5": True,
        "days:5": True,
        "days!=4|5": False,
        "winner=TOWN": True,
        "winner=tow": False,
        "winner:tow": True,
        "winner!=town": False,
        'winner="mafia"|jester': True,
        "finished": True,
        "failed": False,
        "status==finished": True,
        "even": True,
        "even=no": False,
        "jest": True,
        '"no such text"': False,
        "days>4 failed": False,
    }
    found = {text: is_met(parse_filter(text, COLUMNS), ROW, COLUMNS) for text in expected}

    assert found == expected
    assert not is_met(parse_filter("days!=1", COLUMNS), {**ROW, "days": None}, COLUMNS)


def test_filter_that_says_nothing_about_the_columns_is_refused_by_name() -> None:
    for text, words in {
        "dayz>4": "no column 'dayz'",
        "days>": "days is compared with nothing",
        "days>x": "days is a number",
        "winner>town": "winner has no order",
        "even=perhaps": "even is yes or no",
    }.items():
        with pytest.raises(ConfigError, match=words):
            parse_filter(text, COLUMNS)


def row(index: int, outcome: JsonValue, **more: JsonValue) -> JsonObject:
    return index_row(index, outcome) | {"task_id": f"t-{index}", **more}


ROWS = [
    row(0, {"kind": "dice", "best": "Abel", "sum": 7, "payoff": {"Abel": 3, "Cain": 4}}, metrics={"length": 9.5}),
    row(1, {"kind": "dice", "best": "Cain", "sum": 5, "even": True}, failed_attempts=[{"attempt": 1}]),
    row(2, None, status="failed", failure="no usable reply"),
    row(3, {"kind": "dice", "best": "Abel", "sum": 6.5, "even": False, "words": ["a", "b"]}, metrics={"length": None}),
]


def dice(rows: list[JsonObject]) -> Listed:
    return listed("dice").with_outcomes(rows).with_metrics(rows)


def value(found: IndexColumns, name: str, place: int) -> list[str] | float | None:
    """What a column holds of a row."""
    if name in found.numbers:
        return found.numbers[name].numbers[place]
    if name in found.lists:
        return [found.lists[name].words[code] for code in found.lists[name].lists[place]]
    code = found.words[name].codes[place]
    return None if code < 0 else [found.words[name].words[code]]


def expected(kind: str, known: Value) -> list[str] | float | None:
    """A value of the list as columns hold it."""
    if kind in ("number", "truth"):
        assert known is None or isinstance(known, int | float)
        return known
    return words_of(known) if known is not None or kind == "words" else None


def test_columns_hold_what_conditions_compare() -> None:
    how = dice(ROWS)
    found = index_columns(ROWS, how)

    assert found.rows == len(ROWS)
    assert {*found.words, *found.lists, *found.numbers} == {*how.columns}
    for place, each in enumerate(ROWS):
        values = how.values(each)
        for name, column in how.columns.items():
            assert value(found, name, place) == expected(column.kind, values.get(name)), name


def test_columns_have_outcomes_without_results_of_their_own_and_metrics() -> None:
    names = {column.name: column.kind for column in column_views(dice(ROWS))}
    due = {"best": "word", "payoff.Abel": "number", "even": "truth", "words": "words", "length": "number"}

    assert due.items() <= names.items()


def test_later_columns_stand_alone() -> None:
    later = index_columns(ROWS[2:], dice(ROWS), since=2)

    assert (later.since, later.rows) == (2, 2)
    assert value(later, "failure", 0) == ["no usable reply"]
    assert value(later, "best", 1) == ["Abel"]


def test_rows_that_are_still_json_give_the_same_columns() -> None:
    games: list[JsonObject] = [
        {"kind": "game", "ending": "win", "days": 3, "winners": ["town"], "players": [player("town", won=True)]},
        {"kind": "game", "ending": "draw", "days": 9, "winners": [], "players": [player("mafia", won=False)]},
        {"kind": "another"},
    ]
    odd = row(4, None, status="failed", failure="half a pair: \ud800")
    for rows, how in (
        ([row(index, game) for index, game in enumerate(games)], listed("town_of_salem")),
        ([*ROWS, odd], dice([*ROWS, odd])),
    ):
        still_json = [DoneRow(str(each["task_id"]), encode_json(each)) for each in rows]
        assert index_columns(still_json, how) == index_columns(rows, how)


def test_a_damaged_row_that_is_still_json_is_refused_by_name() -> None:
    damaged = {**ROWS[0], "counts": None}

    with pytest.raises(RunDirectoryError, match="t-0"):
        index_columns([DoneRow("t-0", encode_json(damaged))], listed("town_of_salem"))


def player(faction: str, *, won: bool) -> JsonObject:
    """A player of an outcome."""
    return {"agent": "Abel", "definition": "d", "model": "m", "role": "sheriff", "faction": faction, "won": won}


def test_no_rows_make_empty_columns() -> None:
    found = index_columns([], listed("town_of_salem"))

    assert found.rows == 0
    assert found.words["ending"].codes == ()
