"""Why conversations failed, the most frequent reason first."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Final

from mac_runner.failures import in_general, kind_of
from mac_runner.printable import printable
from mac_runner.results import integer, objects, section
from mac_runner.store.rows import IndexRow
from mac_runner.types import JsonObject, JsonValue

REASONS_MAX: Final = 20
"""How many reasons are listed one by one."""
TASK_IDS_MAX: Final = 5
"""How many conversations each reason names."""


@dataclass(slots=True)
class _Reason:
    count: int = 0
    first: list[tuple[int, str, str]] = field(default_factory=list)
    """The first conversations: index, name, and the reason in general."""


class FailureCounter:
    """Counts failures by reason. Its memory follows the number of different reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, _Reason] = {}

    def add(self, row: IndexRow) -> None:
        """Count one row if it failed."""
        if row.reason is None:
            return
        general = in_general(row.reason, row.task_id)
        reason = self._reasons.setdefault(kind_of(general), _Reason())
        reason.count += 1
        insort(reason.first, (row.index, row.task_id, general))
        del reason.first[TASK_IDS_MAX:]

    def report(self) -> list[JsonValue]:
        """The reasons with their counts and first tasks; beyond a bound, how many more there were."""
        ranked = sorted(self._reasons.values(), key=lambda reason: (-reason.count, reason.first[0][2]))
        report: list[JsonValue] = [_entry(reason.first[0][2], reason) for reason in ranked[:REASONS_MAX]]
        rest = ranked[REASONS_MAX:]
        if rest:
            other = _Reason(
                count=sum(reason.count for reason in rest),
                first=sorted(first for reason in rest for first in reason.first)[:TASK_IDS_MAX],
            )
            report.append(_entry(f"{len(rest)} other reasons", other))
        return report


def _entry(text: str, reason: _Reason) -> JsonObject:
    return {"reason": text, "count": reason.count, "task_ids": [task_id for _, task_id, _ in reason.first]}


def nothing_finished(summary: JsonObject) -> str | None:
    """What is to be said where conversations ended and none finished, with the commonest reason."""
    failed, causes = integer(section(summary, "conversations").get("failed")), objects(summary.get("failures"))
    if section(summary, "conversations").get("finished") or not failed or not causes:
        return None
    return (
        f"no conversation finished, {failed:,} failed: {causes[0]['count']:,} × {printable(str(causes[0]['reason']))}"
    )
