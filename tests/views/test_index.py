"""The list of conversations by column: it has what `mac-run show` lists and `--where` compares."""

from __future__ import annotations

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.reports import listed
from mac_runner.reports.testing import Listed, words_of
from mac_runner.results import Value
from mac_runner.store.testing import DoneRow, encode_json
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import IndexColumns
from mac_runner.views.testing import column_views, index_columns
from tests.kit import index_row


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
