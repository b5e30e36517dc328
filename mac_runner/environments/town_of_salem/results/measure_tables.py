"""Measures for readers: a table for each group of them, by definition and faction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from mac_runner.environments.town_of_salem.results.measure_declarations import GROUPS, MEASURES, Measure
from mac_runner.results import UNKNOWN, Figure, Table, figure, section
from mac_runner.types import JsonObject, JsonValue

_UNITS: Final[Mapping[str, str]] = {"rate": "%", "lift": "±pp"}
_NOTE: Final = (
    "Each cell: the measure, its 95% interval by game, and the number of cases. %: of cases; ±pp: percentage points "
    "above chance. By role, day and cause: `measures` in summary.json."
)


def measure_tables(summary: JsonObject) -> Iterator[Table | str]:
    """Tables of the measures that have cases; by model too where models and definitions differ."""
    measured = section(summary, "measures")
    ways = [("definition", section(measured, "by_definition"))]
    if _cells(models := section(measured, "by_model")) != _cells(ways[0][1]):
        ways.append(("model", models))
    for word, names in ways:
        for group in GROUPS:
            if (table := _table(word, names, group)).rows:
                yield table
    if measured:
        yield _NOTE


def _cells(names: JsonObject) -> list[JsonValue]:
    return [names[name] for name in names]


def _table(word: str, names: JsonObject, group: str) -> Table:
    factions = sorted({faction for name in names for faction in section(names, name)})
    rows = [
        (heading, name, *cells)
        for measure in MEASURES
        if measure.group == group
        for part in ("", *_parts(measure, names))
        for name in names
        if any(
            cells := [
                _cell(measure, _found(measure, section(section(names, name), faction), part)) for faction in factions
            ]
        )
        if (heading := f"  {measure.by} {part}" if part else _heading(measure))
    ]
    title = f"{group} by faction" if len(names) == 1 and word == "definition" else f"{group} by {word} and faction"
    if len(names) > 1:
        return Table(title, ("measure", word), tuple(factions), rows)
    return Table(title, ("measure",), tuple(factions), [(row[0], *row[2:]) for row in rows])


def _heading(measure: Measure) -> str:
    return f"{measure.name}, {_UNITS[measure.unit]}" if measure.unit in _UNITS else measure.name


def _parts(measure: Measure, names: JsonObject) -> list[str]:
    """The causes of a measure, or the days of one that is compared with chance, in the order of the summary."""
    if measure.by == "day" and measure.unit != "lift":
        return []
    cells = [cell for name in names for cell in section(names, name).values() if isinstance(cell, dict)]
    parts = {part for cell in cells for part in section(section(cell, measure.key), f"by_{measure.by}")}
    return sorted(parts, key=lambda part: (int(part) if part.isdecimal() else 0, part))


def _found(measure: Measure, cell: JsonObject, part: str) -> JsonObject:
    whole = section(cell, measure.key)
    return section(section(whole, f"by_{measure.by}"), part) if part else whole


def _cell(measure: Measure, found: JsonObject) -> str:
    """`12 (10–15) n 1340`; "" where there are no cases."""
    if not found:
        return ""
    value = found.get("rate" if measure.unit == "rate" else "mean")
    interval = found.get("interval")
    shown = f" ({'–'.join(_text(measure, end) for end in interval)})" if isinstance(interval, list) else ""
    # Without separators of thousands, so that three factions fit beside each other.
    return f"{_text(measure, value)}{shown} n {found.get('n')}"


def _text(measure: Measure, value: JsonValue) -> str:
    if not isinstance(value, int | float):
        return UNKNOWN
    match measure.unit:
        case "rate":
            return f"{100 * value:.0f}"
        case "lift":
            return f"{100 * value:+.0f}"
        case _:
            return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def measure_figures(summary: JsonObject) -> Iterator[tuple[str, Figure]]:
    """Every rate by definition and faction, for the files of a grid."""
    names = section(section(summary, "measures"), "by_definition")
    for name in names:
        factions = section(names, name)
        for faction in factions:
            cell = section(factions, faction)
            for measure in MEASURES:
                found = figure(section(cell, measure.key), is_headline=False) if measure.unit == "rate" else None
                if found is not None:
                    yield f"{measure.key}.{name}.{faction}", found
