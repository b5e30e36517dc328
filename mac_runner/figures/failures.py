"""Failed conversations in figures: a row of their own, and results with them counted as lost.

A conversation that failed has no outcome. Results over finished ones alone are biased if failing depends on who plays,
so a rate is given a second time with every failed conversation counted as lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from mac_runner.figures.data import EndedRow
from mac_runner.figures.model import DataColumn, Figure, Method, Value
from mac_runner.intervals import ClusteredRate, wilson

_REASON_CHARS: int = 80


class FailedGroup(NamedTuple):
    """Why a conversation failed, without what is particular to it."""

    reason: str

    @classmethod
    def of(cls, ended: EndedRow) -> FailedGroup:
        """The reason of a failed conversation."""
        failure = ended.row.get("failure")
        text = failure if isinstance(failure, str) else "without a reason"
        return cls(text if len(text) <= _REASON_CHARS else f"{text[: _REASON_CHARS - 1]}…")


def counted_as_lost(rate: ClusteredRate, failed: int, *, cases: int = 1) -> ClusteredRate:
    """The rate with so many more conversations of `cases` cases each, none of them won."""
    found = replace(rate)
    for _ in range(failed):
        found.add(0, cases)
    return found


def failure_note(failed: int, finished: int, unit: str) -> tuple[str, ...]:
    """That some conversations are not in a figure; nothing where none failed."""
    if not failed:
        return ()
    share = failed / (failed + finished)
    return (f"{failed:,} of {failed + finished:,} {unit} failed ({share:.1%}) and have no result.",)


def status_figure(
    name: str, title: str, endings: Mapping[str, int], failed: Sequence[FailedGroup], *, unit: str
) -> Figure:
    """A table of how conversations ended, with a row for each reason that some failed."""
    total = sum(endings.values()) + len(failed)
    counted = [(word, "finished", count) for word, count in sorted(endings.items(), key=lambda one: (-one[1], one[0]))]
    reasons = Counter(group.reason for group in failed)
    counted += [(reason, "failed", count) for reason, count in reasons.most_common()]
    return Figure(
        id=name,
        title=title,
        caption=f"All {total:,} {unit} that have ended. Shares are of these.",
        n=total,
        unit=unit,
        columns=(
            DataColumn(name="label", title="ending"),
            DataColumn(name="status", title="status"),
            DataColumn(name="n", title=unit, kind="count"),
            DataColumn(name="value", title="share", kind="rate"),
            DataColumn(name="lo", title="95 % from", kind="rate"),
            DataColumn(name="hi", title="to", kind="rate"),
        ),
        rows=tuple(_row(word, status, count, total) for word, status, count in counted),
        methods=(
            Method(
                statement="Intervals of shares of conversations are Wilson score intervals.",
                unit=unit,
                n=total,
                interval="Wilson score, 95 %",
            ),
        ),
    )


def _row(word: str, status: str, count: int, total: int) -> dict[str, Value]:
    interval = wilson(count, total)
    assert interval is not None, "one has ended"
    return {"label": word, "status": status, "n": count, "value": count / total, "lo": interval.lo, "hi": interval.hi}
