"""What became of answers, and whom participants followed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mac_runner.figures.discussion.rates import cases, rate_columns, rate_methods, rate_row
from mac_runner.figures.model import DataColumn, Figure, Value
from mac_runner.figures.plots import forest, heat
from mac_runner.results import integer, section
from mac_runner.types import JsonObject

_AGENTS_MAX: Final = 16
"""A larger matrix cannot be read."""
_TRANSITIONS: Final = {
    "stance_ambiguous": "What became of first answers in ambiguous contexts?",
    "stance_disambiguated": "What became of first answers in disambiguated contexts?",
    "correctness": "Did right answers stay right?",
}
_IDENTITIES: Final = {
    "followed": ("Whom do participants follow, by the identity that they see?", "followed", "chances to follow"),
    "changes": ("Who changes an answer, by the identity that others see?", "changed", "chances to change"),
}


def influence_figures(report: JsonObject) -> Iterator[Figure]:
    """Transitions, who moved whom, and rates by identity."""
    transitions = section(report, "transitions")
    for kind, title in _TRANSITIONS.items():
        yield from _transition(section(section(transitions, kind), "first_to_final"), kind, title)
    yield from _moved(section(report, "moved"))
    for what, (title, value, unit) in _IDENTITIES.items():
        yield from _identities(section(report, f"{what}_by_identity"), what, title, value, unit)


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


def _moved(moved: JsonObject) -> Iterator[Figure]:
    agents = sorted({*moved, *(reader for author in moved for reader in section(moved, author))})
    if not moved:
        return
    rows: list[dict[str, Value]] = []
    for author in moved:
        for reader in section(moved, author):
            row = rate_row(section(section(moved, author), reader), author=author, reader=reader)
            value = row["value"]
            rows.append({**row, "text": f"{value:.0%}" if isinstance(value, float) else ""})
    n = sum(int(row["n"] or 0) for row in rows)
    spec = None
    if len(agents) <= _AGENTS_MAX:
        spec = heat(
            rows,
            across="reader",
            down="author",
            value="value",
            text="text",
            titles=("reader", "author"),
            is_sorted=True,
        )
    yield Figure(
        id="influence-matrix",
        title="Who moves whom?",
        caption="How often a reader took over the answer of an author, of the times that it had read another answer "
        f"than its own; {n:,} chances. The data has the interval of each.",
        n=n,
        unit="chances to follow",
        columns=rate_columns(
            ("author", "author"), ("reader", "reader"), value="followed", kind="rate", cases="chances to follow"
        ),
        rows=tuple(rows),
        spec=spec,
        methods=rate_methods(rows),
    )


def _identities(found: JsonObject, what: str, title: str, value: str, unit: str) -> Iterator[Figure]:
    rows = [rate_row(section(found, identity), identity=identity) for identity in found]
    if len(rows) < 2:
        # One identity is compared with nothing; the rate over all is in the table of the course.
        return
    yield Figure(
        id=f"{what}-by-identity",
        title=title,
        caption=f"Share of the {unit}, with 95 % interval.",
        n=cases(rows),
        unit=unit,
        columns=rate_columns(("identity", "identity"), value=value, kind="rate", cases=unit),
        rows=tuple(rows),
        spec=forest(rows, label="identity", unit="rate", title=value, units="questions"),
        methods=rate_methods(rows),
    )
