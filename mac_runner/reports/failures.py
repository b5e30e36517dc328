"""Why conversations failed, the most frequent reason first."""

from __future__ import annotations

import re
from bisect import insort
from dataclasses import dataclass, field
from typing import Final

from mac_runner.reports.rows import IndexRow
from mac_runner.types import JsonObject, JsonValue

REASONS_MAX: Final = 20
"""How many reasons are listed one by one."""
TASK_IDS_MAX: Final = 5
"""How many conversations each reason names."""

# Another turn does not make it another reason: `turn 12/Ann/0/1: …` and `turn 3/Bob/0/0: …` are one.
_TURN_KEY = re.compile(r"\bturn \d+/[^/\n]*/\d+/\d+")


@dataclass(slots=True)
class _Reason:
    count: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)


class FailureCounter:
    """Counts failures by reason. Its memory follows the number of different reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, _Reason] = {}

    def add(self, row: IndexRow) -> None:
        """Count one row if it failed."""
        if row.reason is None:
            return
        reason = self._reasons.setdefault(_TURN_KEY.sub("turn …", row.reason), _Reason())
        reason.count += 1
        insort(reason.first, (row.index, row.task_id))
        del reason.first[TASK_IDS_MAX:]

    def report(self) -> list[JsonValue]:
        """The reasons with their counts and first tasks; beyond a bound, how many more there were."""
        ranked = sorted(self._reasons.items(), key=lambda item: (-item[1].count, item[0]))
        report: list[JsonValue] = [_entry(text, reason) for text, reason in ranked[:REASONS_MAX]]
        rest = ranked[REASONS_MAX:]
        if rest:
            other = _Reason(
                count=sum(reason.count for _, reason in rest),
                first=sorted(first for _, reason in rest for first in reason.first)[:TASK_IDS_MAX],
            )
            report.append(_entry(f"{len(rest)} other reasons", other))
        return report


def _entry(text: str, reason: _Reason) -> JsonObject:
    return {"reason": text, "count": reason.count, "task_ids": [task_id for _, task_id in reason.first]}
