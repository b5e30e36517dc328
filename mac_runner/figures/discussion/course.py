"""How discussions went: changes by round, consensus, endings."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.figures.discussion.rates import cases, rate_columns, rate_methods, rate_row
from mac_runner.figures.model import DataColumn, Figure
from mac_runner.figures.plots import by_round
from mac_runner.results import integer, section
from mac_runner.types import JsonObject


def course_figures(report: JsonObject) -> Iterator[Figure]:
    """Consensus and endings as a table, and how many change their answer in each round."""
    n = integer(report.get("n")) or 0
    rows = [
        rate_row(section(report, key), what=words)
        for key, words in (
            ("consensus", "discussions that ended in consensus"),
            ("changes", "answers that changed from one round to the next"),
            ("followed", "answers taken over from another, of those read that differed"),
        )
    ]
    yield Figure(
        id="course",
        title="How often do discussions end in agreement, and how often do answers change?",
        caption=f"{n:,} finished discussions, with {report.get('rounds_mean')} rounds on average. Endings: "
        f"{', '.join(f'{name} {count}' for name, count in section(report, 'ended_by').items())}.",
        n=n,
        unit="discussions",
        columns=rate_columns(("what", "what"), value="share", kind="rate", cases="cases"),
        rows=tuple(rows),
        methods=rate_methods(rows),
    )
    changes = section(report, "changes_by_round")
    rows = [rate_row(section(changes, number), round=float(number)) for number in changes]
    if len(rows) > 1:
        yield Figure(
            id="changes-by-round",
            title="When do participants change their answers?",
            caption="Share of answers that are another than in the round before, with 95 % interval.",
            n=cases(rows),
            unit="answers",
            columns=(
                DataColumn(name="round", title="round", kind="count"),
                *rate_columns(value="changed", kind="rate"),
            ),
            rows=tuple(rows),
            spec=by_round(rows, title="changed answers", unit="rate"),
            methods=rate_methods(rows),
        )
