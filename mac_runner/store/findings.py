"""What a check of a run directory found, in words and counted.

In the words of a jury: what was attempted, what was acknowledged, and of that what is lost, duplicated, unexpected,
damaged, or not what its replies make of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FindingKind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    DAMAGED = "damaged"
    MISMATCHED = "mismatched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, in words; `task_id` is the task it is about, where it is about one."""

    kind: FindingKind
    text: str
    task_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """`attempted` tasks left some trace, `acknowledged` ones were reported as done.

    `notes` are what is not wrong and yet worth knowing: what was not judged, and why.
    """

    attempted: int
    acknowledged: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    @property
    def lost(self) -> int:
        """Acknowledged results that are not there."""
        return self._count(FindingKind.LOST)

    @property
    def duplicated(self) -> int:
        """Results that are there more than once."""
        return self._count(FindingKind.DUPLICATED)

    @property
    def unexpected(self) -> int:
        """Results that nobody acknowledged."""
        return self._count(FindingKind.UNEXPECTED)

    @property
    def damaged(self) -> int:
        """Bytes that are not what was written."""
        return self._count(FindingKind.DAMAGED)

    @property
    def mismatched(self) -> int:
        """Results that are not what their replies make of them."""
        return self._count(FindingKind.MISMATCHED)

    def _count(self, kind: FindingKind) -> int:
        return sum(finding.kind is kind for finding in self.findings)
