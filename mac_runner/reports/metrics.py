"""What the metrics of an experiment come to over its conversations: in the summary, in tables, and over a grid.

Read from index rows alone. A value that is null has an error beside it; a conversation that has no value at all ended
before the experiment had the metric, or the metric gave none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.intervals import ExactMean
from mac_runner.results import (
    UNKNOWN,
    Table,
    count_text,
    ends,
    interval_text,
    objects,
    percent_text,
    section,
)
from mac_runner.store.rows import IndexRow
from mac_runner.types import JsonObject, JsonValue

METRICS_SHOWN_MAX: Final = 60
"""How many values the printed table has."""
_ERRORS_MAX: Final = 5
"""How many different errors of one metric are listed."""


@dataclass(slots=True)
class _Errors:
    """The errors of one metric. Each text is kept with the first conversation that has it."""

    count: int = 0
    texts: Counter[str] = field(default_factory=Counter)
    first: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, text: str, row: IndexRow) -> None:
        self.count += 1
        self.texts[text] += 1
        place = (row.index, row.task_id)
        self.first[text] = min(place, self.first.get(text, place))

    def report(self) -> JsonObject:
        ranked = sorted(self.texts.items(), key=lambda item: (-item[1], item[0]))
        listed: list[JsonValue] = [
            {"error": text, "count": count, "first": self.first[text][1]} for text, count in ranked[:_ERRORS_MAX]
        ]
        return {"conversations": self.count, "different": len(ranked), "errors": listed}


class MetricCounter:
    """Counts values by name. Its memory follows the number of names and of different errors."""

    def __init__(self) -> None:
        self._values: dict[str, ExactMean] = {}
        self._errors: dict[str, _Errors] = {}
        self._reward_errors: dict[str, _Errors] = {}
        self._finished = 0

    def add(self, row: IndexRow) -> None:
        """Count one finished conversation."""
        self._finished += 1
        for name, value in row.metrics.items():
            found = self._values.setdefault(name, ExactMean())
            if value is not None:
                found.add(value)
        for name, text in row.metric_errors.items():
            self._errors.setdefault(name, _Errors()).add(text, row)
        for name, text in row.reward_errors.items():
            self._reward_errors.setdefault(name, _Errors()).add(text, row)

    def report(self) -> JsonObject:
        """Its sections of the summary; none without a value or an error."""
        found: dict[str, JsonObject] = {
            "metrics": {name: self._value(name, value) for name, value in sorted(self._values.items())},
            "metric_errors": {name: error.report() for name, error in sorted(self._errors.items())},
            "reward_errors": {name: error.report() for name, error in sorted(self._reward_errors.items())},
        }
        return {name: part for name, part in found.items() if part}

    def _value(self, name: str, found: ExactMean) -> JsonObject:
        mean = found.mean
        errors = self._errors[name].count if name in self._errors else 0
        return {
            "n": found.n,
            "absent": self._finished - found.n - errors,
            "rate" if found.is_rate else "score": None if mean is None else round(mean, 4),
            "interval": ends(found.interval),
            "min": found.least,
            "max": found.most,
        }


def metric_tables(summary: JsonObject) -> Iterator[Table | str]:
    """The table of a summary's metrics, and a note for each that failed."""
    values = section(summary, "metrics")
    rows = [(name, *_cells(section(values, name))) for name in list(values)[:METRICS_SHOWN_MAX]]
    if rows:
        heads = ("n", "mean", "95% interval", "min", "max", "absent")
        yield Table("metrics, by conversation", ("metric",), heads, rows)
    if (hidden := len(values) - len(rows)) > 0:
        yield f"and {hidden} more values: summary.json has them all."
    yield from metric_warnings(summary)


def metric_warnings(summary: JsonObject) -> Iterator[str]:
    """The metrics and rewards that failed on some conversations."""
    for kind in ("metric", "reward"):
        errors = section(summary, f"{kind}_errors")
        for name in errors:
            found = section(errors, name)
            for first in objects(found.get("errors"))[:1]:
                count = count_text(found.get("conversations"))
                where = f"failed on {count} conversations, first {first['first']}"
                yield f"warning: {kind} {name} {where}: {first['error']}"


def named(name: str, taken: Collection[str]) -> str:
    """What a metric is called beside the names that are taken."""
    return f"metric.{name}" if name in taken else name


def metrics_of(row: IndexRow, taken: Collection[str]) -> Mapping[str, float | None]:
    """The metrics of a row as columns of the list of conversations."""
    return {named(name, taken): value for name, value in row.metrics.items()}


def _cells(record: JsonObject) -> tuple[str, ...]:
    text = percent_text if "rate" in record else _text
    mean = record.get("rate") if "rate" in record else record.get("score")
    ends_ = (_text(record.get(key)) for key in ("min", "max"))
    counts = count_text(record.get("n")), count_text(record.get("absent"))
    return counts[0], text(mean), interval_text(record.get("interval"), text), *ends_, counts[1]


def _text(value: JsonValue) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, int | float) else UNKNOWN
