"""One table over a grid: typed columns, values first, then counts, then rates with their intervals."""

from __future__ import annotations

import csv
import io

import pyarrow.parquet

from mac_runner.reports import GridRow, csv_bytes, grid_table, parquet_bytes, summarise_grid
from mac_runner.reports.testing import ROWS_SHOWN_MAX
from mac_runner.types import JsonObject, JsonValue
from tests.kit import render_grid


def rate(n: int, wins: int) -> JsonObject:
    return {"n": n, "games": n, "wins": wins, "rate": wins / n, "interval": [0.1, 0.9]}


def a_summary(*, n: int = 4, failed: int = 0, factions: tuple[str, ...] = ("mafia", "town")) -> JsonObject:
    by_faction: JsonObject = {name: rate(n, 1) for name in factions}
    return {
        "conversations": {"planned": n + failed, "finished": n, "failed": failed},
        "turns": 10 * n,
        "corrections": 1,
        "defaults": 0,
        "tokens": {"prompt": 7, "completion": 3, "timing": {"cached": 2}},
        "wins": {"by_faction": by_faction},
    }


def row(slug: str, summary: JsonObject | None = None, *, session: int = 1, **values: JsonValue) -> GridRow:
    return GridRow(slug=slug, values=values, session=session, summary=summary)


def cells(rows: list[GridRow], name: str) -> tuple[str, list[object]]:
    column = next(column for column in grid_table(rows).columns if column.name == name)
    return column.kind, [*column.cells]


def grid_summary(rows: list[GridRow], **more: object) -> JsonObject:
    settings: dict[str, object] = {"complete": 1, "left_out": [], "accounting": {"sessions": {"1": "then"}}, **more}
    return summarise_grid(name="g", profile="p", rows=rows, **settings)  # type: ignore[arg-type]


def test_column_of_values_is_of_the_narrowest_kind() -> None:
    cases: list[tuple[list[JsonValue], str, list[object]]] = [
        ([1, 2], "integer", [1, 2]),
        ([1, 2.5], "number", [1.0, 2.5]),
        ([True, None], "truth", [True, None]),
        ([True, 1], "text", ["true", "1"]),
        (["a", 3], "text", ["a", "3"]),
        ([[1, "x"], {"k": None}], "text", ['[1, "x"]', '{"k": null}']),
        ([None, None], "text", [None, None]),
    ]
    for values, kind, expected in cases:
        assert cells([row(str(place), v=value) for place, value in enumerate(values)], "v") == (kind, expected)


def test_combination_that_has_not_begun_has_no_results_and_values_are_told_apart_from_results() -> None:
    rows = [row("a", a_summary(), seed=1, turns=3), row("b", None, seed=2)]

    assert cells(rows, "finished") == ("integer", [4, None])
    assert cells(rows, "wins.town.rate") == ("number", [0.25, None])
    assert cells(rows, "seed") == ("integer", [1, 2])
    assert (cells(rows, "grid.turns")[1], cells(rows, "turns")[1]) == ([3, None], [40, None])


def test_every_figure_has_its_n_and_interval() -> None:
    rows = [row("a", a_summary(factions=("town",))), row("b", a_summary(n=2, factions=("mafia",)))]
    names = [column.name for column in grid_table(rows).columns]

    assert names[-8:] == [f"wins.{name}.{part}" for name in ("mafia", "town") for part in ("n", "rate", "lo", "hi")]
    assert cells(rows, "wins.mafia.n")[1] == [None, 2]


def test_figures_of_discussions_are_rates_and_scores() -> None:
    scores: JsonObject = {"n": 9, "biased": 2, "counter": 3, "score": -0.25, "interval": [-0.5, 0.1]}
    bias: JsonObject = {"all": {"ambiguous": scores, "disambiguated": {**scores, "score": None, "interval": None}}}
    discussions: JsonObject = {
        "n": 3,
        "consensus": rate(3, 1),
        "accuracy": {"first": rate(9, 3), "group": rate(3, 2)},
        "bias": {"group": bias},
    }
    rows = [row("a", {**a_summary(), "wins": {}, "discussions": discussions}), row("b")]

    for name, kind, value in (
        ("bias.group.ambiguous.score", "number", -0.25),
        ("bias.group.disambiguated.score", "number", None),
        ("bias.group.ambiguous.n", "integer", 9),
        ("bias.group.disambiguated.n", "integer", 5),
        ("accuracy.first.n", "integer", 9),
        ("consensus.rate", "number", 1 / 3),
    ):
        assert cells(rows, name) == (kind, [value, None]), name
    printed = render_grid(grid_summary(rows), rows)
    assert "-0.25 (-0.50 to 0.10), n 9" in printed
    assert "33.3 (10.0–90.0), n 3" in printed


def test_csv_and_parquet_hold_the_same_table() -> None:
    rows = [row("a", a_summary(), lobby='x,y\n"z"', on=True, heat=0.5), row("b", None, lobby="ü", on=False, heat=1)]
    table = grid_table(rows)
    read = list(csv.DictReader(io.StringIO(csv_bytes(table).decode("utf-8"))))
    typed = pyarrow.parquet.read_table(io.BytesIO(parquet_bytes(table)))

    assert [line["lobby"] for line in read] == typed.column("lobby").to_pylist() == ['x,y\n"z"', "ü"]
    assert [line["on"] for line in read] == ["true", "false"]
    assert typed.column("on").to_pylist() == [True, False]
    assert [line["heat"] for line in read] == ["0.5", "1.0"]
    assert typed.column("finished").to_pylist() == [4, None]
    assert typed.column_names == list(read[0])


def test_tokens_that_nobody_counted_are_left_out_of_the_table() -> None:
    tokens: JsonObject = {"prompt": 0, "completion": 0, "timing": {"cached": 0}, "uncounted_turns": 40}
    rows = [row("a", {**a_summary(), "tokens": tokens}), row("b", a_summary())]

    assert cells(rows, "prompt_tokens") == ("integer", [None, 7])
    due = {"prompt": 7, "completion": 3, "timing": {"cached": 2}, "uncounted_turns": 40}
    assert grid_summary(rows)["tokens"] == due


def test_summary_adds_up_the_combinations_and_keeps_slot_use_for_the_whole() -> None:
    model: JsonObject = {
        "capacity": 64,
        "played_s": 10.0,
        "busy_slot_s": 30.0,
        "available_slot_s": 40.0,
        "requests": 80,
    }
    sessions: JsonObject = {"1": "then", "2": "now"}
    accounting: JsonObject = {"wall_s": 12.5, "played_s": 10.0, "sessions": sessions, "models": {"m": model}}
    rows = [row("a", a_summary()), row("b", a_summary(failed=1), session=2), row("c", None, session=2)]
    summary = grid_summary(rows, accounting=accounting, left_out=["old"])

    assert summary["combinations"] == {"asked": 3, "begun": 2, "complete": 1}
    assert summary["conversations"] == {"planned": 9, "finished": 8, "failed": 1}
    assert summary["turns"] == 80
    assert (summary["wall_s"], summary["played_s"]) == (12.5, 10.0)
    assert summary["models"] == {"m": {"capacity": 64, "slots_mean": 4.0, "slot_utilisation": 0.75, "requests": 80}}
    assert ["m", "64", "4.0", "75.0%", "80"] in [line.split() for line in render_grid(summary, rows).splitlines()]
    assert summary["parts"] == [
        {"session": 1, "started_at": "then", "combinations": ["a"]},
        {"session": 2, "started_at": "now", "combinations": ["b", "c"]},
    ]
    assert summary["left_out"] == ["old"]


def test_printed_table_has_a_row_per_combination_and_one_n_where_they_agree() -> None:
    values: JsonObject = {"game.lobby": "x", "flags.lobby": 1, "seed": 1}
    rows = [GridRow(slug="a", values=values, session=1, summary=a_summary(n=20))]
    alike = render_grid(grid_summary(rows), rows)
    rows.append(row("b", {**a_summary(), "wins": {"by_faction": {"town": rate(3, 1), "mafia": rate(9, 1)}}}, seed=2))
    mixed = render_grid(grid_summary(rows), rows)

    assert "flags.lobby   seed" in alike
    assert "20   5.0 (10.0–90.0)" in alike
    assert "11.1 (10.0–90.0), n 9" in mixed
    assert "33.3 (10.0–90.0), n 3" in mixed


def test_printed_table_is_bounded_says_where_the_rest_is_and_fits_a_narrow_terminal() -> None:
    many = [row(str(seed), None, seed=seed) for seed in range(ROWS_SHOWN_MAX + 7)]
    text = render_grid(grid_summary(many), many)
    values: JsonObject = {f"section.key_{n}": "value" * 5 for n in range(6)}
    wide = [GridRow(slug="a", values=values, session=1, summary=a_summary())]

    assert "7 more combinations: " in text
    assert len(text.splitlines()) < ROWS_SHOWN_MAX + 10
    assert max(map(len, render_grid(grid_summary(wide), wide, width=60).splitlines())) <= 60
