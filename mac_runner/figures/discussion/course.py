"""How discussions went, and what became of first answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.measures import MEASURES
from mac_runner.figures.charts import heat
from mac_runner.figures.measures import numbers_of, rate_columns, rate_methods
from mac_runner.figures.model import DataColumn, Figure, Value
from mac_runner.measures import Row
from mac_runner.results import integer, section
from mac_runner.types import JsonObject

_RATES: Final = {
    "consensus": "discussions that ended in consensus",
    "changes": "answers that changed from one round to the next",
    "followed": "answers taken over from another, of those read that differed",
}
_TRANSITIONS: Final = {
    "stance_ambiguous": "What became of first answers in ambiguous contexts?",
    "stance_disambiguated": "What became of first answers in disambiguated contexts?",
    "correctness": "Did right answers stay right?",
}


def course_figure(report: JsonObject) -> Figure:
    """Consensus and endings as a table."""
    n = integer(report.get("n")) or 0
    measures = {measure.place.removeprefix("discussions."): measure for measure in MEASURES}
    rows = [
        {"what": words, **numbers_of(measures[key], Row((), section(report, key)))} for key, words in _RATES.items()
    ]
    return Figure(
        id="course",
        title="How often do discussions end in agreement, and how often do answers change?",
        caption=f"{n:,} finished discussions, with {report.get('rounds_mean')} rounds on average. Endings: "
        f"{', '.join(f'{name} {count}' for name, count in section(report, 'ended_by').items())}.",
        n=n,
        unit="discussions",
        columns=(DataColumn(name="what", title="what"), *rate_columns("share", "rate", "cases")),
        rows=tuple(rows),
        methods=rate_methods(measures["consensus"], rows),
    )


def transition_figures(report: JsonObject) -> Iterator[Figure]:
    """From the kind of first answers to the kind of last ones."""
    for kind, title in _TRANSITIONS.items():
        counts = section(section(section(report, "transitions"), kind), "first_to_final")
        yield from _transition(counts, kind, title)


def _transition(counts: JsonObject, kind: str, title: str) -> Iterator[Figure]:
    befores = [before for before in counts if any(section(counts, before).values())]
    afters = [after for after in counts if any(section(counts, before).get(after) for before in counts)]
    rows: list[dict[str, Value]] = []
    for before in befores:
        found = {after: integer(section(counts, before).get(after)) or 0 for after in afters}
        n = sum(found.values())
        for after, count in found.items():
            share = count / n if n else None
            text = f"{count} ({share:.0%})" if share is not None else ""
            rows.append({"before": before, "after": after, "count": count, "share": share, "text": text})
    if rows:
        n = sum(int(row["count"] or 0) for row in rows)
        yield Figure(
            id=f"transitions-{kind.replace('_', '-')}",
            title=title,
            caption=f"{n:,} participants of finished discussions: the kind of their first answer (rows) and of their "
            "last (columns), as counts and shares of the row.",
            n=n,
            unit="participants",
            columns=(
                DataColumn(name="before", title="first"),
                DataColumn(name="after", title="last"),
                DataColumn(name="count", title="participants", kind="count"),
                DataColumn(name="share", title="of the row", kind="rate"),
            ),
            rows=tuple(rows),
            spec=heat(
                rows,
                across="after",
                down="before",
                value="share",
                text="text",
                titles=("last answer", "first answer"),
            ),
        )
