"""One table over a grid: a row for each combination, what it differs in, and what came of it.

Pure. Every row has the same columns, each of one type: text, whole numbers, numbers, or truth values. A rate comes with
the number of cases that it was counted on and the ends of its interval. What depends on time stands in no column, so
that the table of a grid that was killed and resumed is that of one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from mac_runner.types import JsonObject, JsonValue

Kind: TypeAlias = Literal["text", "integer", "number", "truth"]
Cell: TypeAlias = bool | int | float | str | None

_COUNTS = (("conversations", "planned"), ("conversations", "finished"), ("conversations", "failed"))
_SUMS = ("turns", "corrections", "defaults")
_TOLD = ("biased", "counter")
_TOKENS = ("prompt", "completion")


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRow:
    """One combination: its values by column, the session that first asked for it, and its summary if it has begun."""

    slug: str
    values: Mapping[str, JsonValue]
    session: int
    summary: JsonObject | None


class Figure(NamedTuple):
    """A rate (of 1) or a score on `n` cases, with both ends of its interval."""

    n: int
    value: float | None
    lo: float | None
    hi: float | None
    unit: Literal["rate", "score"] = "rate"


class Column(NamedTuple):
    """One column, all of whose cells are of one kind or empty."""

    name: str
    kind: Kind
    cells: tuple[Cell, ...]


class GridTable(NamedTuple):
    """The columns, all equally long; `values` of them, from the second on, are what the combinations differ in."""

    columns: tuple[Column, ...]
    values: int


def grid_table(rows: Sequence[GridRow]) -> GridTable:
    """The table over `rows`."""
    swept = list(dict.fromkeys(name for row in rows for name in row.values))
    figures = [{} if row.summary is None else figures_of(row.summary) for row in rows]
    results = [
        _column("session", [row.session for row in rows]),
        *_counts([row.summary or {} for row in rows]),
        *_figures(figures),
    ]
    taken = {"combination", *(column.name for column in results)}
    values = [
        _column(f"grid.{name}" if name in taken else name, [row.values.get(name) for row in rows]) for name in swept
    ]
    return GridTable((_column("combination", [row.slug for row in rows]), *values, *results), len(swept))


def figures_of(summary: JsonObject) -> dict[str, Figure]:
    """The headline figures of a run: of games, how often each faction won; of discussions, who was right, how often all
    agreed, and the bias scores, each with its interval."""
    wins, discussions = _object(summary, "wins"), _object(summary, "discussions")
    accuracy, bias = _object(discussions, "accuracy"), _object(discussions, "bias")
    found = {f"wins.{name}": _object(_object(wins, "by_faction"), name) for name in _object(wins, "by_faction")}
    found |= {f"accuracy.{kind}": _object(accuracy, kind) for kind in accuracy}
    found["consensus"] = _object(discussions, "consensus")
    for kind in bias:
        contexts = _object(_object(bias, kind), "all")
        found |= {f"bias.{kind}.{context}": _object(contexts, context) for context in contexts}
    # Answers that it cannot be known count in the ambiguous score, and are no case of the disambiguated one.
    cases = {name: _TOLD if name.endswith(".disambiguated") else ("n",) for name in found}
    figures = {name: _figure(record, cases=cases[name]) for name, record in found.items()}
    return {name: figure for name, figure in figures.items() if figure is not None}


def _figure(record: JsonObject, *, cases: tuple[str, ...] = ("n",)) -> Figure | None:
    """A figure on as many cases as `cases` count together."""
    counts = [_integer(record.get(name)) for name in cases]
    n = None if None in counts else sum(count or 0 for count in counts)
    interval = record.get("interval")
    if n is None:
        return None
    lo, hi = interval if isinstance(interval, list) and len(interval) == 2 else (None, None)
    unit: Literal["rate", "score"] = "score" if "score" in record else "rate"
    return Figure(n, _float(record.get(unit)), _float(lo), _float(hi), unit)


def _counts(summaries: Sequence[JsonObject]) -> Iterator[Column]:
    for section, key in _COUNTS:
        yield Column(key, "integer", tuple(_integer(_object(summary, section).get(key)) for summary in summaries))
    for key in _SUMS:
        yield Column(key, "integer", tuple(_integer(summary.get(key)) for summary in summaries))
    for key in _TOKENS:
        cells = tuple(_integer(_counted(summary).get(key)) for summary in summaries)
        yield Column(f"{key}_tokens", "integer", cells)


def _counted(summary: JsonObject) -> JsonObject:
    """The tokens of a combination; none that nobody counted."""
    tokens = _object(summary, "tokens")
    uncounted = tokens.get("uncounted_turns")
    return {} if uncounted and uncounted == summary.get("turns") else tokens


def _figures(rows: Sequence[Mapping[str, Figure]]) -> Iterator[Column]:
    for name, unit in figure_names(rows).items():
        found = [row.get(name) for row in rows]
        yield Column(f"{name}.n", "integer", tuple(None if figure is None else figure.n for figure in found))
        for part, attribute in ((unit, "value"), ("lo", "lo"), ("hi", "hi")):
            cells = tuple(None if figure is None else getattr(figure, attribute) for figure in found)
            yield Column(f"{name}.{part}", "number", cells)


def figure_names(rows: Iterable[Mapping[str, Figure]]) -> dict[str, str]:
    """Every figure that any of the rows has, with its unit, in an order that does not depend on the rows'."""
    units = {name: figure.unit for row in rows for name, figure in row.items()}
    return {name: units[name] for name in sorted(units)}


def _column(name: str, values: Iterable[JsonValue]) -> Column:
    """A column of whatever stands there: of the narrowest kind that holds all of it."""
    present = [*values]
    kinds = {_kind(value) for value in present if value is not None}
    if kinds == {"integer", "number"}:
        return Column(name, "number", tuple(_float(value) for value in present))
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


def _object(source: JsonObject, key: str) -> JsonObject:
    value = source.get(key)
    return value if isinstance(value, dict) else {}


def _integer(value: JsonValue) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: JsonValue) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
