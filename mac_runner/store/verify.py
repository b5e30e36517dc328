"""The checker: whether a run directory keeps what the store promises. Reads only.

Whatever can be derived is derived and compared: transcripts are played again, their rows made again, the summary is
made of the journal, and the event log is held against it. The journal is read first and, where a process is at work in
the directory, once more at the end: what changed in between is not judged.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from mac_runner.errors import ConversationError, RunDirectoryError, StoreError, boundary
from mac_runner.store import journal
from mac_runner.store.discrepancies import discrepancies
from mac_runner.store.disk import TEMPORARY_PREFIX, Disk
from mac_runner.store.event_check import event_findings
from mac_runner.store.findings import Finding, FindingKind, VerifyReport
from mac_runner.store.frames import encode_json, lines
from mac_runner.store.layout import Layout, task_id_of
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import decode_manifest
from mac_runner.store.motion import Motion
from mac_runner.store.reader import read_run
from mac_runner.store.records import entry
from mac_runner.store.summary_check import Summarise, read_json, sessions_of, summary_findings
from mac_runner.store.transcripts import decode_transcript, index_row, upgraded_row, with_attempts, without_timing
from mac_runner.types import JsonObject, JsonValue

Rebuild = Callable[[JsonObject], JsonObject]
"""From a transcript to the transcript that its task and its replies make when they are played again."""

_Rows = dict[str, JsonObject]

_REPAIRED = "running the experiment again writes it anew"
_UNDER_WAY = ""
"""What a finding is about that may be half of a write."""


def verify_run(
    directory: Path,
    *,
    rebuild: Rebuild,
    summarise: Summarise | None = None,
    disk: Disk | None = None,
    machine: Machine | None = None,
) -> VerifyReport:
    """Check a run directory; with `summarise` its summary too. Raises RunDirectoryError when it is none."""
    disk, machine = disk or Disk(), machine or Machine()
    layout = read_run(directory, disk=disk).layout
    motion = Motion(disk, layout, machine)
    # The summary before the journal that it is made of: a session that ends meanwhile writes it last.
    summary = None if summarise is None else read_json(disk, layout.summary)
    rows = _rows(disk, layout)
    attempts = journal.attempts(disk, layout)
    begun = journal.replies(disk, layout, lambda task_id: task_id not in rows)
    damaged = [*_journal_findings(disk, layout)]
    found = [
        *damaged,
        *_transcript_findings(disk, layout, rows, attempts, rebuild),
        *_attempt_findings(disk, layout, rows, attempts, rebuild),
        *_stray_findings(disk, layout, rows),
        *_manifest_findings(disk, layout, rows, attempts),
        *event_findings(disk, layout, is_journal_whole=not damaged),
    ]
    index = [*_index_findings(disk, layout, rows)]
    notes = [*_temporaries(disk, layout)]
    if isinstance(summary, Finding):
        found.append(summary)
    elif summary is not None and summarise is not None:
        found += summary_findings(disk, layout, summary, summarise)
        notes += _summary_notes(disk, layout, summary)
    found += index
    if (owner := motion.owner()) is not None:
        lately = journal.ended_in(disk, layout, motion.session)
        lagging = [finding for finding in index if finding.kind is FindingKind.LOST and finding.task_id in lately]
        after = _rows(disk, layout)
        judged = [finding for finding in found if finding not in lagging and _is_settled(finding, rows, after)]
        notes.append(motion.told(owner, len(found) - len(judged)))
        found = judged
    return VerifyReport(
        attempted=len(rows.keys() | begun.keys()), acknowledged=len(rows), findings=tuple(found), notes=tuple(notes)
    )


def check_log(directory: Path, name: str, *, disk: Disk | None = None) -> tuple[list[Finding], list[str]]:
    """What is wrong with the journal and the events in the directory of a grid, and what is worth knowing."""
    disk = disk or Disk()
    layout = Layout(directory=directory, experiment_name=name)
    damaged = [*_journal_findings(disk, layout)]
    events = event_findings(disk, layout, is_journal_whole=not damaged)
    return [*damaged, *events], [*_temporaries(disk, layout)]


def _temporaries(disk: Disk, layout: Layout) -> Iterator[str]:
    """What to know of the temporary files, if there are any: they are no results, and no damage."""
    places = (layout.directory, layout.journal, layout.transcripts, layout.attempts)
    count = sum(name.startswith(TEMPORARY_PREFIX) for place in places for name in disk.names(place))
    if count:
        yield (
            f"{count} temporary files ({TEMPORARY_PREFIX}…): of a process at work, or left by one that was killed; "
            "the next run removes the latter"
        )


def _rows(disk: Disk, layout: Layout) -> _Rows:
    return {entry(row, "task_id", str): row for row in journal.rows(disk, layout)}


def _is_settled(finding: Finding, before: _Rows, after: _Rows) -> bool:
    """Whether a finding is not about a conversation that ended or was opened again while it was made.

    A transcript stands before it is acknowledged, and a row of the index and the manifest come behind.
    """
    task_id = finding.task_id
    return task_id is None or (task_id in after and before.get(task_id) == after[task_id])


def _summary_notes(disk: Disk, layout: Layout, summary: JsonObject) -> Iterator[str]:
    if sessions := sessions_of(summary, known := len(journal.sessions(disk, layout))):
        yield f"{layout.summary.name} was written by session {sessions} of {known}: the later ones did not end"


def _journal_findings(disk: Disk, layout: Layout) -> Iterator[Finding]:
    for path, damage in journal.damage(disk, layout):
        text = f"{path.name}: {damage.size_bytes} bytes at offset {damage.offset} are no intact frame"
        yield Finding(kind=FindingKind.DAMAGED, text=text)


def _transcript_findings(
    disk: Disk, layout: Layout, rows: _Rows, attempts: dict[str, list[JsonObject]], rebuild: Rebuild
) -> Iterator[Finding]:
    for task_id, row in rows.items():
        before = attempts.get(task_id, [])
        yield from _findings(disk, layout.transcript(task_id), task_id, task_id, row, before, rebuild)


def _attempt_findings(
    disk: Disk, layout: Layout, rows: _Rows, attempts: dict[str, list[JsonObject]], rebuild: Rebuild
) -> Iterator[Finding]:
    """Attempts that failed and were tried again are kept like results."""
    kept = set()
    for task_id, failed in attempts.items():
        for number, row in enumerate(failed, start=1):
            path = layout.attempt(task_id, number)
            kept.add(path.name)
            what = f"{task_id}, attempt {number}"
            yield from _findings(disk, path, task_id, what, row, failed[: number - 1], rebuild)
    for name in _lasting(disk, layout.attempts):
        # One that was kept for a retry that was killed before it began is that of the conversation as it stands.
        task_id = name.rpartition(".json")[0].rpartition(".")[0]
        if name not in kept and not _is_of(disk, layout.attempts / name, rows.get(task_id)):
            text = f"{layout.attempts.name}/{name}: no attempt of this number is known"
            yield Finding(kind=FindingKind.UNEXPECTED, text=text, task_id=task_id)


def _findings(
    disk: Disk, path: Path, task_id: str, what: str, row: JsonObject, before: list[JsonObject], rebuild: Rebuild
) -> Iterator[Finding]:
    """What is wrong with the transcript of an acknowledged row, `before` which stand those of failed attempts."""

    def finding(kind: FindingKind, text: str) -> Finding:
        return Finding(kind=kind, text=f"{what}: {text}", task_id=task_id)

    if disk.exists(path) and not disk.is_file(path):
        yield finding(FindingKind.DAMAGED, "its transcript is no regular file")
        return
    try:
        data = disk.read(path) if disk.exists(path) else None
    except StoreError:
        if disk.exists(path):
            raise
        data = None  # A retry took it away.
    if data is None:
        yield finding(FindingKind.LOST, "acknowledged, and its transcript is not there")
    elif (len(data), _sha256(data)) != (row["size_bytes"], row["sha256"]):
        yield finding(FindingKind.DAMAGED, "its transcript is not what was acknowledged")
    elif reason := _difference(task_id, data, row, before, rebuild):
        yield finding(FindingKind.MISMATCHED, reason)


def _difference(task_id: str, data: bytes, row: JsonObject, before: list[JsonObject], rebuild: Rebuild) -> str | None:
    """How a transcript differs from what its replies, or its row from what it makes; None when neither does."""
    try:
        transcript = decode_transcript(data)
        if (found := entry(entry(transcript, "task", dict), "task_id", str)) != task_id:
            return f"its transcript is that of {found}"
        with boundary(ConversationError, "it cannot be played again"):
            rebuilt = rebuild(transcript)
        own = next(
            discrepancies(upgraded_row(row), upgraded_row(with_attempts(index_row(transcript, data), before))), None
        )
    except (ConversationError, ValueError) as fault:
        return str(fault)
    keys = {*transcript, *rebuilt} - {"timing"}
    changed = sorted(key for key in keys if _plain(transcript, key) != _plain(rebuilt, key))
    if changed:
        return f"played again it comes out different in {', '.join(changed)}"
    return None if own is None else f"its acknowledged row is not that of its transcript: {own}"


def _plain(transcript: JsonObject, key: str) -> bytes:
    """One part of a transcript as bytes, so that 1, 1.0 and true are three things."""
    return encode_json(without_timing(transcript[key])) if key in transcript else b""


def _lasting(disk: Disk, directory: Path) -> list[str]:
    return [name for name in disk.names(directory) if not name.startswith(TEMPORARY_PREFIX)]


def _stray_findings(disk: Disk, layout: Layout, rows: _Rows) -> Iterator[Finding]:
    for name in _lasting(disk, layout.transcripts):
        task_id, where = task_id_of(name), f"{layout.transcripts.name}/{name}"
        if task_id is None:
            text = f"{where}: no transcript has such a name; a run leaves it alone"
            yield Finding(kind=FindingKind.UNEXPECTED, text=text)
        elif task_id not in rows:
            text = (
                f"{where}: nobody acknowledged it; a run that goes on adopts it, or sets it aside in "
                f"{layout.damaged.name}/ where it is not whole"
            )
            yield Finding(kind=FindingKind.UNEXPECTED, text=text, task_id=task_id)


def _manifest_findings(
    disk: Disk, layout: Layout, rows: _Rows, attempts: dict[str, list[JsonObject]]
) -> Iterator[Finding]:
    """The manifest lags behind the journal, and says nothing else."""
    name = layout.manifest.name
    try:
        manifest = decode_manifest(disk.chunks(layout.manifest), str(layout.manifest))
    except RunDirectoryError as fault:
        yield Finding(kind=FindingKind.DAMAGED, text=str(fault))
        return
    for task_id, status in manifest.statuses.items():
        row = rows.get(task_id)
        known: set[JsonValue] = {"pending", *(before["status"] for before in attempts.get(task_id, ()))}
        said = f"{name}: {task_id} is {status!r}"
        if row is not None:
            known.add(row["status"])
            if manifest.planned[task_id] != row["index"]:
                text = f"{name}: index of {task_id} is {manifest.planned[task_id]}, expected {row['index']}"
                yield Finding(kind=FindingKind.MISMATCHED, text=text, task_id=task_id)
        if status not in known:
            text = f"{said}, expected {'pending' if row is None else row['status']!r}; {_REPAIRED}"
            yield Finding(kind=FindingKind.MISMATCHED, text=text, task_id=task_id)
    statuses = Counter(manifest.statuses.values())
    counts: JsonObject = {
        "planned": len(manifest.planned),
        "finished": statuses["finished"],
        "failed": statuses["failed"],
    }
    for place in discrepancies(manifest.counts, counts):
        yield Finding(kind=FindingKind.MISMATCHED, text=f"{name}: counts.{place}; {_REPAIRED}")


def _index_findings(disk: Disk, layout: Layout, rows: _Rows) -> Iterator[Finding]:
    seen = Counter[str]()
    for line in lines(disk.chunks(layout.index)):
        try:
            row = json.loads(line.data)
            task_id = entry(row, "task_id", str) if isinstance(row, dict) else ""
        except (ValueError, RecursionError):
            text = f"{layout.index.name}: the line at offset {line.offset} is no row; {_REPAIRED}"
            yield Finding(kind=FindingKind.DAMAGED, text=text, task_id=None if line.is_ended else _UNDER_WAY)
            continue
        seen[task_id] += 1
        if task_id not in rows:
            text = f"{layout.index.name}: a row of {task_id!r}, which nobody acknowledged; {_REPAIRED}"
            yield Finding(kind=FindingKind.UNEXPECTED, text=text, task_id=task_id)
        elif (place := next(discrepancies(row, rows[task_id]), None)) is not None:
            text = f"{task_id}: its row of the index is not the one acknowledged: {place}; {_REPAIRED}"
            yield Finding(kind=FindingKind.MISMATCHED, text=text, task_id=task_id)
    for task_id in rows:
        if seen[task_id] > 1:
            text = f"{task_id}: {seen[task_id]} rows in the index; {_REPAIRED}"
            yield Finding(kind=FindingKind.DUPLICATED, text=text, task_id=task_id)
        elif not seen[task_id]:
            text = f"{task_id}: no row in the index; {_REPAIRED}"
            yield Finding(kind=FindingKind.LOST, text=text, task_id=task_id)


def _is_of(disk: Disk, path: Path, row: JsonObject | None) -> bool:
    """Whether a file holds the transcript of a row."""
    return row is not None and disk.is_file(path) and _sha256(disk.read(path)) == row["sha256"]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
