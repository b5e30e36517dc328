"""The checker: whether a run directory keeps what the store promises. Reads only.

It counts in the words of a jury: what was attempted, what was acknowledged, and of that what is lost, duplicated,
unexpected, damaged, or not what its replies make of it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mac_runner.errors import ConversationError, boundary
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.frames import encode_json, lines
from mac_runner.store.layout import Layout, task_id_of
from mac_runner.store.reader import read_run
from mac_runner.store.records import entry
from mac_runner.store.transcripts import decode_transcript, without_timing
from mac_runner.types import JsonObject

Rebuild = Callable[[JsonObject], JsonObject]
"""From a transcript to the transcript that its task and its replies make when they are played again."""


class FindingKind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    DAMAGED = "damaged"
    MISMATCHED = "mismatched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, in words."""

    kind: FindingKind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """`attempted` tasks left some trace, `acknowledged` ones were reported as done."""

    attempted: int
    acknowledged: int
    findings: tuple[Finding, ...]

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


def verify_run(directory: Path, *, rebuild: Rebuild, disk: Disk | None = None) -> VerifyReport:
    """Check a run directory. Raises RunDirectoryError when it is none."""
    disk = disk or Disk()
    layout = read_run(directory, disk=disk).layout
    rows = {entry(row, "task_id", str): row for row in journal.rows(disk, layout)}
    names = disk.names(layout.transcripts)
    begun = journal.replies(disk, layout, lambda task_id: task_id not in rows)
    findings = (
        *_journal_findings(disk, layout),
        *_transcript_findings(disk, layout, rows, rebuild),
        *_attempt_findings(disk, layout, rows, rebuild),
        *_stray_findings(layout, rows, names),
        *_index_findings(disk, layout, rows),
    )
    return VerifyReport(attempted=len(rows.keys() | begun.keys()), acknowledged=len(rows), findings=findings)


def _journal_findings(disk: Disk, layout: Layout) -> Iterator[Finding]:
    for path, damage in journal.damage(disk, layout):
        text = f"{path.name}: {damage.size_bytes} bytes at offset {damage.offset} are no intact frame"
        yield Finding(kind=FindingKind.DAMAGED, text=text)


def _transcript_findings(
    disk: Disk, layout: Layout, rows: dict[str, JsonObject], rebuild: Rebuild
) -> Iterator[Finding]:
    for task_id, row in rows.items():
        yield from _findings(disk, layout.transcript(task_id), task_id, task_id, row, rebuild)


def _attempt_findings(disk: Disk, layout: Layout, rows: dict[str, JsonObject], rebuild: Rebuild) -> Iterator[Finding]:
    """Attempts that failed and were tried again are kept like results."""
    kept = set()
    for task_id, failed in journal.attempts(disk, layout).items():
        for number, row in enumerate(failed, start=1):
            path = layout.attempt(task_id, number)
            kept.add(path.name)
            yield from _findings(disk, path, task_id, f"{task_id}, attempt {number}", row, rebuild)
    for name in disk.names(layout.attempts):
        # One that was kept for a retry that was killed before it began is that of the conversation as it stands.
        task_id = name.rpartition(".json")[0].rpartition(".")[0]
        if name not in kept and _sha256(disk.read(layout.attempts / name)) != rows.get(task_id, {}).get("sha256"):
            text = f"{layout.attempts.name}/{name}: no attempt of this number is known"
            yield Finding(kind=FindingKind.UNEXPECTED, text=text)


def _findings(disk: Disk, path: Path, task_id: str, what: str, row: JsonObject, rebuild: Rebuild) -> Iterator[Finding]:
    """What is wrong with the transcript of an acknowledged row."""
    if not disk.exists(path):
        yield Finding(kind=FindingKind.LOST, text=f"{what}: acknowledged, and its transcript is not there")
        return
    data = disk.read(path)
    if (len(data), _sha256(data)) != (row["size_bytes"], row["sha256"]):
        yield Finding(kind=FindingKind.DAMAGED, text=f"{what}: its transcript is not what was acknowledged")
    elif reason := _difference(task_id, data, rebuild):
        yield Finding(kind=FindingKind.MISMATCHED, text=f"{what}: {reason}")


def _difference(task_id: str, data: bytes, rebuild: Rebuild) -> str | None:
    """How a transcript differs from what its replies make of it; None when it does not."""
    try:
        transcript = decode_transcript(data)
        if (found := entry(entry(transcript, "task", dict), "task_id", str)) != task_id:
            return f"its transcript is that of {found}"
        with boundary(ConversationError, "it cannot be played again"):
            rebuilt = rebuild(transcript)
    except (ConversationError, ValueError) as fault:
        return str(fault)
    keys = {*transcript, *rebuilt} - {"timing"}
    changed = sorted(key for key in keys if _plain(transcript, key) != _plain(rebuilt, key))
    return f"played again it comes out different in {', '.join(changed)}" if changed else None


def _plain(transcript: JsonObject, key: str) -> bytes:
    """One part of a transcript as bytes, so that 1, 1.0 and true are three things."""
    return encode_json(without_timing(transcript[key])) if key in transcript else b""


def _stray_findings(layout: Layout, rows: dict[str, JsonObject], names: list[str]) -> Iterator[Finding]:
    for name in names:
        if task_id_of(name) not in rows:
            text = f"{layout.transcripts.name}/{name}: nobody acknowledged it; a run adopts it when it goes on"
            yield Finding(kind=FindingKind.UNEXPECTED, text=text)


def _index_findings(disk: Disk, layout: Layout, rows: dict[str, JsonObject]) -> Iterator[Finding]:
    again = "running the experiment again writes it anew"
    seen = Counter[str]()
    for line in lines(disk.chunks(layout.index)):
        try:
            row = json.loads(line.data)
            task_id = entry(row, "task_id", str) if isinstance(row, dict) else ""
        except (ValueError, RecursionError):
            text = f"{layout.index.name}: the line at offset {line.offset} is no row; {again}"
            yield Finding(kind=FindingKind.DAMAGED, text=text)
            continue
        seen[task_id] += 1
        if task_id not in rows:
            text = f"{layout.index.name}: a row of {task_id!r}, which nobody acknowledged; {again}"
            yield Finding(kind=FindingKind.UNEXPECTED, text=text)
        elif row != rows[task_id]:
            text = f"{task_id}: its row of the index is not the one acknowledged; {again}"
            yield Finding(kind=FindingKind.MISMATCHED, text=text)
    for task_id in rows:
        if seen[task_id] > 1:
            text = f"{task_id}: {seen[task_id]} rows in the index; {again}"
            yield Finding(kind=FindingKind.DUPLICATED, text=text)
        elif not seen[task_id]:
            yield Finding(kind=FindingKind.LOST, text=f"{task_id}: no row in the index; {again}")


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
