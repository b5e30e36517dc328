"""The comparisons of a grid of discussions for readers: one table of differences from the baseline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from mac_runner.compared import CLUSTERS_MIN, how_paired
from mac_runner.environments.discussion.results.comparisons import COMPARED, KEY, families_in_words
from mac_runner.printable import counted
from mac_runner.results import UNKNOWN, Difference, Table, count_text, integer, number, objects, section
from mac_runner.types import JsonObject, JsonValue

ROWS_SHOWN_MAX: Final = 100
"""How many differences are printed; `comparisons.json` and the table of the grid hold all of them."""
_Q_MAX: Final = 0.05
UNDECLARED: Final = (
    "The combinations are not compared: declare the one they are compared with as `report.baseline`, by its values "
    "or its "
    "directory's name, and the figure that the study is about as `report.primary`."
)


def grid_differences(compared: JsonObject) -> dict[str, dict[str, Difference]]:
    """For each figure how each combination differs from the baseline."""
    return {
        str(figure.get("figure")): {str(row.get("combination")): _difference(row) for row in _rows(figure)}
        for figure in _figures(compared)
    }


def _difference(row: JsonObject) -> Difference:
    lo, hi = _ends(row.get("interval"))
    odds_lo, odds_hi = _ends(row.get("odds_interval"))
    return Difference(
        n=integer(row.get("questions")),
        diff=number(row.get("difference")),
        diff_lo=lo,
        diff_hi=hi,
        p=number(row.get("p")),
        q=number(row.get("q")),
        h=number(row.get("cohens_h")),
        odds=number(row.get("odds_ratio")),
        odds_lo=odds_lo,
        odds_hi=odds_hi,
    )


def paired_tables(compared: JsonObject) -> Iterator[Table | str]:
    """The table, the primary outcome first, and notes on how to read it."""
    if section(compared, KEY).get("figures") is None:
        return
    rows = [(figure, row) for figure in _figures(compared) for row in _rows(figure)]
    if not rows:
        yield "No combination has questions in common with the baseline, or the baseline has not begun."
        return
    numbers = ("n", "baseline", "here", "difference (95% interval)", "p", "q", "h", "odds ratio (95% interval)")
    lines = [
        (_name(figure), _values(section(row, "values")), *_numbers(row, is_rate=figure.get("unit") == "rate"))
        for figure, row in rows
    ]
    unit = _unit(section(compared, KEY))
    title = f"differences from the baseline, {_values(section(section(compared, KEY), 'values'))} (n {unit}s)"
    yield Table(title, ("figure", "combination"), numbers, lines[:ROWS_SHOWN_MAX])
    yield "\n".join(_notes(section(compared, KEY), rows))


def primary_words(compared: JsonObject) -> str:
    """The primary outcome in a sentence: of several combinations the one that differs most from the baseline."""
    paired = section(compared, KEY)
    figure = next((each for each in _figures(compared) if each.get("is_primary")), {})
    rows = sorted(_rows(figure), key=lambda row: -abs(number(row.get("difference")) or 0.0))
    if not rows:
        return ""
    text, points = (_points, " points") if figure.get("unit") == "rate" else (_score, "")
    ends = [text(end, "+") for end in _ends(rows[0].get("interval"))]
    found = f"{text(rows[0].get('difference'), '+')}{points}{_span(ends)}, p {_p_text(rows[0].get('p'))}"
    count = integer(rows[0].get("questions")) or 0
    largest = "largest " if len(rows) > 1 else ""
    here = _values(section(rows[0], "values"))
    head = f"{figure.get('figure')}: {largest}difference from the baseline {found}"
    head += f", n {counted(count, f'{_unit(paired)}s')} ({here})"
    if len(rows) == 1:
        return head
    differing = sum((number(row.get("q")) or 1.0) < _Q_MAX for row in rows)
    return f"{head}; {differing} of {len(rows)} combinations differ (q < {_Q_MAX})"


def _notes(found: JsonObject, rows: list[tuple[JsonObject, JsonObject]]) -> Iterator[str]:
    primary = found.get("primary")
    if not isinstance(primary, str):
        yield "No primary outcome is declared (`report.primary`): all of these are exploratory."
    elif any(figure.get("is_primary") for figure, _ in rows):
        yield f"Primary outcome: {primary} (*). The other figures are secondary."
    else:
        yield f"Primary outcome: {primary}, of which there are no cases. The other figures are secondary."
    unit = _unit(found)
    of_one = ", as all are of one question" if unit == "discussion" else ""
    how = how_paired(unit, {row.get("test") for _, row in rows})
    yield f"Paired by {unit}{of_one}. Interval and p of a row are of one test:"
    yield f"{how}."
    yield f"q: p adjusted over {families_in_words(found)} (Benjamini–Hochberg)."
    yield "Rates and differences in points, scores as they are. h: Cohen's; it and odds ratios are of proportions."
    if any(row.get("is_odds_corrected") for _, row in rows):
        yield "+: one of four counts was 0, so half a case was added to each (Haldane–Anscombe)."
    fewest = min(integer(row.get("questions")) or 0 for _, row in rows)
    if fewest < CLUSTERS_MIN:
        few = counted(fewest, f"{unit}s")
        yield f"Some rows have {few} only: with fewer than {CLUSTERS_MIN}, intervals are too narrow."
    left_out = max(integer(row.get("left_out")) or 0 for _, row in rows)
    if left_out:
        has = "had" if unit == "discussion" else "discussed"
        yield f"Up to {left_out} {unit}s are left out, which only one of the two {has}."
    if len(rows) > ROWS_SHOWN_MAX:
        yield f"{len(rows) - ROWS_SHOWN_MAX} more differences: comparisons.json and grid.csv have all of them."


def _unit(found: JsonObject) -> str:
    """What is paired: `question` or `discussion`."""
    return "discussion" if found.get("paired_by") == "discussion" else "question"


def _name(figure: JsonObject) -> str:
    return f"{figure.get('figure')}{' *' if figure.get('is_primary') else ''}"


def _numbers(row: JsonObject, *, is_rate: bool) -> tuple[str, ...]:
    text = _points if is_rate else _score
    odds = _ends(row.get("odds_interval"))
    ratio, mark = number(row.get("odds_ratio")), "+" if row.get("is_odds_corrected") else ""
    return (
        count_text(row.get("questions")),
        text(row.get("baseline"), ""),
        text(row.get("found"), ""),
        f"{text(row.get('difference'), '+')}{_span([text(end, '+') for end in _ends(row.get('interval'))])}",
        _p_text(row.get("p")),
        _p_text(row.get("q")),
        _score(row.get("cohens_h"), "+"),
        UNKNOWN if ratio is None else f"{ratio:.2f}{mark}{_span([_ratio(end) for end in odds])}",
    )


def _span(ends: list[str]) -> str:
    return "" if UNKNOWN in ends else f" ({' to '.join(ends)})"


def _points(value: JsonValue, sign: str) -> str:
    """`12.0` for a rate of 0.12."""
    found = number(value)
    return UNKNOWN if found is None else f"{100 * found:{sign}.1f}"


def _score(value: JsonValue, sign: str) -> str:
    found = number(value)
    return UNKNOWN if found is None else f"{found:{sign}.3f}"


def _ratio(value: JsonValue) -> str:
    found = number(value)
    return UNKNOWN if found is None else f"{found:.2f}"


def _p_text(value: JsonValue) -> str:
    found = number(value)
    if found is None:
        return UNKNOWN
    return "<0.001" if found < 0.001 else f"{found:.3f}"


def _values(values: Mapping[str, JsonValue]) -> str:
    """`identity_shown true, presence_mode hidden`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    return ", ".join(f"{name.rpartition('.')[2]} {text}" for name, text in texts.items())


def _figures(compared: JsonObject) -> list[JsonObject]:
    return [each for each in objects(section(compared, KEY).get("figures")) if each.get("figure") in COMPARED]


def _rows(figure: JsonObject) -> list[JsonObject]:
    return objects(figure.get("combinations"))


def _ends(value: JsonValue) -> tuple[float | None, float | None]:
    if isinstance(value, list) and len(value) == 2:
        return number(value[0]), number(value[1])
    return None, None
