"""The results of a grid: its table, a row for each combination, and its summary (pure).

Every row has the same columns, each of one type: text, whole numbers, numbers, or truth values. A rate comes with the
number of its cases and the ends of its interval, and, where a baseline is declared, with its difference from that. No
column depends on time: the table of a grid that was killed and resumed is that of one that was not. In the summary the
counts of the combinations are added up. What the engines did is known for the whole grid only, because they served all
combinations together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from mac_runner import compared as statistics
from mac_runner.flat import Cell
from mac_runner.measures import measure_figures
from mac_runner.paired import PairedRow, compare_with_baseline, compared_figures, paired_of
from mac_runner.registry import results_specs
from mac_runner.reports.metrics import named
from mac_runner.reports.outcomes import metric_measures, outcome_figures
from mac_runner.reports.summary import SUMMARY_FORMAT, models_of, times_of
from mac_runner.results import Declared, Figure, PlayedCombination, integer, number, section
from mac_runner.store.rows import parse_row
from mac_runner.types import JsonObject, JsonValue

COMPARISONS_FORMAT: Final = 1
ROWS_SHOWN_MAX: Final = 200
"""How many combinations are printed; the files of a grid hold all of them."""

Kind: TypeAlias = Literal["text", "integer", "number", "truth"]

_CONVERSATIONS = ("planned", "finished", "failed")
_SUMS = ("turns", "corrections", "defaults")
_TOKENS = ("prompt", "completion")
_DIFFERENCE: Final[Mapping[str, Callable[[PairedRow], float | None]]] = {
    "diff_n": lambda row: row.n,
    "diff": lambda row: row.difference,
    "diff_lo": lambda row: None if row.interval is None else row.interval[0],
    "diff_hi": lambda row: None if row.interval is None else row.interval[1],
    "p": lambda row: row.p,
    "q": lambda row: row.q,
    "h": lambda row: row.cohens_h,
    "odds": lambda row: row.odds_ratio,
    "odds_lo": lambda row: None if row.odds_interval is None else row.odds_interval[0],
    "odds_hi": lambda row: None if row.odds_interval is None else row.odds_interval[1],
}
"""What the table has of the difference of a figure from the baseline's, by the end of the column's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One combination: its values by column, the session that first asked for it, and its summary if it has begun."""

    slug: str
    values: Mapping[str, JsonValue]
    session: int
    summary: JsonObject | None


class Column(NamedTuple):
    """One column, all of whose cells are of one kind or empty."""

    name: str
    kind: Kind
    cells: tuple[Cell, ...]


class GridTable(NamedTuple):
    """The columns, all equally long; `values` of them, from the second on, are what the combinations differ in."""

    columns: tuple[Column, ...]
    values: int


def grid_table(rows: Sequence[GridRow], compared: JsonObject | None = None) -> GridTable:
    """The table over `rows`, with their differences from the baseline in `compared` where there are any."""
    figures = [{} if row.summary is None else figures_of(row.summary) for row in rows]
    results = [
        _column("session", [row.session for row in rows]),
        *_counts([row.summary or {} for row in rows]),
        *_figures(figures),
        *_differences(rows, compared or {}),
    ]
    taken = {"combination", *(column.name for column in results)}
    values = value_columns([row.values for row in rows], taken)
    return GridTable((_column("combination", [row.slug for row in rows]), *values, *results), len(values))


def value_columns(rows: Sequence[Mapping[str, JsonValue]], taken: Container[str]) -> list[Column]:
    """What combinations differ in, as columns; a name that is taken has `grid.` before it."""
    swept = dict.fromkeys(name for row in rows for name in row)
    return [_column(f"grid.{name}" if name in taken else name, [row.get(name) for row in rows]) for name in swept]


def figures_of(summary: JsonObject) -> dict[str, Figure]:
    """The figures that the environments find in the summary of a run, and those of its metrics."""
    own = {name: figure for spec in results_specs().values() for name, figure in spec.figures(summary).items()}
    own |= outcome_figures(summary, own)
    metrics = measure_figures(metric_measures(summary), summary)
    return own | {named(name, own): figure for name, figure in metrics.items()}


def _counts(summaries: Sequence[JsonObject]) -> Iterator[Column]:
    for key in _CONVERSATIONS:
        cells = tuple(integer(section(summary, "conversations").get(key)) for summary in summaries)
        yield Column(key, "integer", cells)
    for key in _SUMS:
        yield Column(key, "integer", tuple(integer(summary.get(key)) for summary in summaries))
    for key in _TOKENS:
        cells = tuple(integer(_counted(summary).get(key)) for summary in summaries)
        yield Column(f"{key}_tokens", "integer", cells)


def _counted(summary: JsonObject) -> JsonObject:
    """The tokens of a combination; empty where no engine counted them."""
    tokens = section(summary, "tokens")
    uncounted = tokens.get("uncounted_turns")
    return {} if uncounted and uncounted == summary.get("turns") else tokens


def _figures(rows: Sequence[Mapping[str, Figure]]) -> Iterator[Column]:
    for name, unit in figure_names(rows).items():
        found = [row.get(name) for row in rows]
        yield Column(f"{name}.n", "integer", tuple(None if figure is None else figure.n for figure in found))
        for part, attribute in ((unit, "value"), ("lo", "lo"), ("hi", "hi")):
            cells = tuple(None if figure is None else getattr(figure, attribute) for figure in found)
            yield Column(f"{name}.{part}", "number", cells)


def _differences(rows: Sequence[GridRow], compared: JsonObject) -> Iterator[Column]:
    paired = paired_of(compared)
    found: dict[str, dict[str, PairedRow]] = {}
    for row in paired.rows or () if paired and paired.baseline else ():
        found.setdefault(row.figure, {})[row.combinations[0][0]] = row
    for figure, by_slug in found.items():
        of_rows = [by_slug.get(row.slug) for row in rows]
        for part, cell in _DIFFERENCE.items():
            cells = tuple(None if row is None else cell(row) for row in of_rows)
            yield Column(f"{figure}.{part}", "integer" if part == "diff_n" else "number", cells)


def figure_names(rows: Iterable[Mapping[str, Figure]]) -> dict[str, str]:
    """Every figure that any of the rows has, with its unit, in an order that does not depend on the rows'."""
    units = {name: figure.unit for row in rows for name, figure in row.items()}
    return {name: units[name] for name in sorted(units)}


def _column(name: str, values: Iterable[JsonValue]) -> Column:
    """A column of the narrowest kind that holds all the values."""
    present = [*values]
    kinds = {_kind(value) for value in present if value is not None}
    if kinds == {"integer", "number"}:
        return Column(name, "number", tuple(number(value) for value in present))
    if len(kinds) == 1 and kinds != {"text"}:
        return Column(
            name, kinds.pop(), tuple(value if isinstance(value, bool | int | float) else None for value in present)
        )
    return Column(name, "text", tuple(_text(value) for value in present))


def _kind(value: JsonValue) -> Kind:
    match value:
        case bool():
            return "truth"
        case int():
            return "integer"
        case float():
            return "number"
        case _:
            return "text"


def _text(value: JsonValue) -> str | None:
    return value if isinstance(value, str | None) else json.dumps(value, ensure_ascii=False)


def summarise_grid(
    *,
    name: str,
    profile: str,
    rows: Sequence[GridRow],
    complete: int,
    left_out: Sequence[str],
    accounting: JsonObject,
    declared: Declared | None = None,
) -> JsonObject:
    """Sum up the combinations that are asked for, and say what its `report` declares.

    `accounting` has `wall_s` and `played_s` over all sessions, when each of `sessions` began, under `models` the
    account of each engine, and the `damaged_lines` of the journal of the grid. `left_out` are earlier combinations;
    they stay in the directory and do not count here.
    """
    summaries = [row.summary for row in rows if row.summary is not None]
    sessions = accounting.get("sessions")
    began = sessions if isinstance(sessions, dict) else {}
    damaged = sum(integer(source.get("damaged_lines")) or 0 for source in (accounting, *summaries))
    return {
        "format": SUMMARY_FORMAT,
        "grid": name,
        "profile": profile,
        "combinations": {"asked": len(rows), "begun": len(summaries), "complete": complete},
        "conversations": _added(summaries, "conversations", _CONVERSATIONS),
        **{key: sum(integer(summary.get(key)) or 0 for summary in summaries) for key in _SUMS},
        "tokens": _tokens(summaries),
        "sessions": len(began),
        **times_of(accounting),
        "models": models_of(accounting.get("models")),
        **({"damaged_lines": damaged} if damaged else {}),
        "parts": [*_parts(rows, began)],
        "left_out": [*left_out],
        **({} if declared is None else {"report": declared._asdict()}),
        "results": [_result(row) for row in rows],
    }


def declared_in(summary: JsonObject) -> Declared | None:
    """What the summary of a grid says was declared."""
    report = section(summary, "report")
    baseline, primary = report.get("baseline"), report.get("primary")
    return Declared(baseline, primary if isinstance(primary, str) else None) if isinstance(baseline, str) else None


def compare_combinations(
    rows: Sequence[GridRow],
    read: Callable[[str], Iterable[JsonObject]],
    declared: Declared | None = None,
) -> JsonObject | None:
    """What the combinations say of one another: `comparisons.json`; None when there is nothing to compare.

    `read` yields the index rows of a combination. Unlike the summary, it depends on what is installed: `libraries` are
    those that made it, None where the extra `stats` was not used.
    """
    has_stats = statistics.has_stats()
    sections: JsonObject = {}
    for kind, spec in results_specs().items():
        if spec.comparisons is not None or compared_figures(spec.measures):
            # Reading rows again takes time, so only those of this kind are.
            counted = [row for row in rows if row.summary is not None and spec.figures(row.summary)]
            played = [played_combination(row.slug, row.values, _planned(row), kind, read(row.slug)) for row in counted]
            if spec.comparisons is None:
                sections |= compare_with_baseline(played, declared, kind, spec, has_stats=has_stats)
            else:
                sections |= spec.comparisons(played, has_stats, declared)
    if not sections:
        return None
    return {"format": COMPARISONS_FORMAT, "libraries": dict(statistics.libraries()) if has_stats else None, **sections}


def lacks_stats(compared: JsonObject | None) -> bool:
    """Whether there would be more to say with the extra `stats`."""
    return compared is not None and compared.get("libraries") is None


def _planned(row: GridRow) -> int:
    return integer(section(row.summary or {}, "conversations").get("planned")) or 0


def played_combination(
    slug: str, values: Mapping[str, JsonValue], planned: int, kind: str, index: Iterable[JsonObject]
) -> PlayedCombination:
    """The finished conversations whose outcomes are of one kind, from their index rows."""
    outcomes = (
        (row.number, row.result, f"the index row of {row.task_id!r}, outcome")
        for row in map(parse_row, index)
        if row.result is not None and row.result.get("kind") == kind
    )
    return PlayedCombination(slug, values, planned, outcomes)


def _parts(rows: Sequence[GridRow], began: Mapping[str, JsonValue]) -> list[JsonValue]:
    """Which combinations came with which session."""
    by_session: dict[int, list[JsonValue]] = {}
    for row in rows:
        by_session.setdefault(row.session, []).append(row.slug)
    return [
        {"session": session, "started_at": began.get(str(session)), "combinations": by_session[session]}
        for session in sorted(by_session)
    ]


def _result(row: GridRow) -> JsonObject:
    result: JsonObject = {"combination": row.slug, "values": dict(row.values), "session": row.session}
    if row.summary is None:
        return {**result, "conversations": None}
    figures: JsonObject = {
        name: {"n": figure.n, figure.unit: figure.value, "interval": [figure.lo, figure.hi]}
        for name, figure in figures_of(row.summary).items()
    }
    return {
        **result,
        "sessions": row.summary.get("sessions"),
        "conversations": row.summary.get("conversations"),
        "figures": figures,
    }


def _added(summaries: Sequence[JsonObject], key: str, names: Sequence[str]) -> JsonObject:
    """The counts under `key` added up."""
    return {name: sum(integer(section(summary, key).get(name)) or 0 for summary in summaries) for name in names}


def _tokens(summaries: Sequence[JsonObject]) -> JsonObject:
    tokens = _added(summaries, "tokens", _TOKENS)
    tokens["timing"] = _added([section(summary, "tokens") for summary in summaries], "timing", ("cached",))
    uncounted = _added(summaries, "tokens", ("uncounted_turns",))
    return {**tokens, **uncounted} if uncounted["uncounted_turns"] else tokens
