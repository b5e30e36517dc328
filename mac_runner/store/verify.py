"""Verification: whether a run directory keeps what the store promises. Reads only.

What is judged is the record: the journal, the transcripts, which are played again, and their token traces. What is made
of it for readers is written again by the commands that write it, and no promise depends on it. The journal is read
first and, where a process is at work in the directory, once more at the end: what changed in between is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from pathlib import Path
from typing import NamedTuple

from mac_runner.errors import ConversationError, RunDirectoryError, StoreError, boundary
from mac_runner.printable import counted
from mac_runner.results import number, section
from mac_runner.store import journal
from mac_runner.store.disk import TEMPORARY_PREFIX, Disk
from mac_runner.store.identity import layout_of, read_head
from mac_runner.store.layout import (
    EXPERIMENTS,
    HIDDEN,
    TRACES_SUFFIX,
    Layout,
    attempted_task_of,
    session_of,
    task_id_of,
    traced_task_of,
    traces_beside,
    visible,
)
from mac_runner.store.leases import at_work
from mac_runner.store.machine import Machine
from mac_runner.store.manifest import ended_by_manifest
from mac_runner.store.records import (
    encode_json,
    entry,
    lines,
    records_of,
    row_id,
)
from mac_runner.store.recovery import trace_strays
from mac_runner.store.run import lost_endings
from mac_runner.store.run_state import RunState, read_state
from mac_runner.store.traces import TRACES, traces_flaw
from mac_runner.store.transcripts import (
    Attempts,
    decode_transcript,
    index_row,
    is_acknowledged,
    sha256_of,
    with_attempts,
    without_timing,
)
from mac_runner.types import JsonObject

Rebuild = Callable[[JsonObject], JsonObject]
"""From a transcript to the one that its task and its replies make when they are played again."""

_Rows = dict[str, JsonObject]


_FOREIGN_SHOWN_MAX = 5
_ROUNDED_S = 0.001


class FindingKind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    WITHOUT_TOKENS = "without tokens"
    """The conversation is there, and the file of its token traces is gone."""
    UNEXPECTED = "unexpected"
    DAMAGED = "damaged"
    MISMATCHED = "mismatched"
    """Not what it is derived from."""


class Remedy(Enum):
    """What brings back what is lost or damaged, as far as anything does."""

    REPAIR = auto()
    RUN = auto()
    """The same command again."""
    MERGE = auto()
    """Into another directory: damaged lines of the journal stay behind."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, in words; `task_id` is the task it is about, if it is about one."""

    kind: FindingKind
    text: str
    task_id: str | None = None
    remedy: Remedy = Remedy.REPAIR


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """`attempted` tasks left some trace, `acknowledged` ones were reported as done.

    `notes` are worth knowing without being wrong: what was not judged, and why.
    """

    attempted: int
    acknowledged: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    is_played: bool = True
    """Whether the transcripts were played again."""
    is_read: bool = True
    """Whether the journal can be read; where it cannot, nothing else was checked."""

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def lost(self) -> int:
        return self._count(FindingKind.LOST)

    @property
    def without_tokens(self) -> int:
        return self._count(FindingKind.WITHOUT_TOKENS)

    @property
    def unexpected(self) -> int:
        return self._count(FindingKind.UNEXPECTED)

    @property
    def damaged(self) -> int:
        return self._count(FindingKind.DAMAGED)

    @property
    def is_repairable(self) -> bool:
        """Whether anything is lost or damaged that the journal may have."""
        found = (finding for finding in self.findings if finding.kind in (FindingKind.LOST, FindingKind.DAMAGED))
        return any(finding.remedy is Remedy.REPAIR for finding in found)

    @property
    def has_damaged_journal(self) -> bool:
        """Whether lines of the journal are damaged, all else of which is read: a merge leaves those behind."""
        return self.is_read and any(finding.remedy is Remedy.MERGE for finding in self.findings)

    @property
    def mismatched(self) -> int:
        return self._count(FindingKind.MISMATCHED)

    def _count(self, kind: FindingKind) -> int:
        return sum(finding.kind is kind for finding in self.findings)


def verify_run(directory: Path, *, rebuild: Rebuild, disk: Disk | None = None) -> VerifyReport:
    """Check a run directory. Raises RunDirectoryError when there is none."""
    disk = disk or Disk()
    layout, _ = read_head(directory, disk=disk)
    ended = ended_by_manifest(disk, layout)
    motion = _Motion(disk, layout)
    found_there = _read_journal(disk, layout)
    if found_there.malformed:
        return _unreadable(found_there)
    state = found_there.state
    rows = _rows(disk, layout, state)
    begun = journal.replies(disk, layout, lambda task_id: task_id not in rows)
    found = [
        *found_there.damaged,
        *_account_findings(found_there),
        *_ending_findings(layout, ended, state),
        *_transcript_findings(disk, layout, rows, state.attempts, rebuild),
        *_attempt_findings(disk, layout, rows, state.attempts, rebuild),
        *_stray_findings(disk, layout, rows),
    ]
    notes = [*_temporaries(disk, layout), *_foreign_notes(disk, layout), *_trace_notes(disk, layout, state)]
    if (owner := motion.owner()) is not None:
        now = _rows(disk, layout, read_state(disk, layout))
        judged = [finding for finding in found if _is_settled(finding, rows, now)]
        notes.append(motion.note(owner, len(found) - len(judged)))
        found = judged
    return VerifyReport(
        attempted=len(rows.keys() | begun.keys()), acknowledged=len(rows), findings=tuple(found), notes=tuple(notes)
    )


def verify_journal(directory: Path) -> VerifyReport:
    """Check the journal in a directory alone: that of a grid, or of a run that no reader takes."""
    disk = Disk()
    # Where a journal is does not depend on the name.
    layout = Layout.at(disk, directory)
    found = _read_journal(disk, layout)
    if found.malformed:
        return _unreadable(found)
    notes = (*_temporaries(disk, layout), *_foreign_notes(disk, layout))
    findings = (*found.damaged, *_strays_of_grid(disk, layout))
    return VerifyReport(attempted=0, acknowledged=0, findings=findings, notes=notes)


def _strays_of_grid(disk: Disk, layout: Layout) -> Iterator[Finding]:
    """The transcripts in the directory of a grid that no combination has."""
    files = visible(disk, layout.root / EXPERIMENTS)
    names = {layout_of(layout.root / Path(name).stem, disk=disk).experiment_name for name in files}
    if not names:
        return
    for task_id in filter(None, map(task_id_of, disk.names(layout.transcripts))):
        if task_id.rpartition("-")[0] not in names:
            text = f"{layout.transcripts.name}/{task_id}.json: no combination of the grid has such a conversation"
            yield Finding(FindingKind.UNEXPECTED, text, task_id)


def _unreadable(found: _Journal) -> VerifyReport:
    note = "nothing else was checked: all of it is compared with the journal"
    findings = (*found.damaged, *found.malformed)
    return VerifyReport(attempted=0, acknowledged=0, findings=findings, notes=(note,), is_read=False)


def _temporaries(disk: Disk, layout: Layout) -> Iterator[str]:
    count = sum(name.startswith(TEMPORARY_PREFIX) for place in layout.swept for name in disk.names(place))
    if count:
        yield (
            f"{count} temporary files ({TEMPORARY_PREFIX}…): of a process at work, or left by one that was killed; "
            "the next run removes the latter"
        )


def _rows(disk: Disk, layout: Layout, state: RunState) -> _Rows:
    return {row_id(row): row for row in state.rows(disk, layout)}


def _is_settled(finding: Finding, before: _Rows, after: _Rows) -> bool:
    """Whether a finding is not about a conversation that ended or was opened again during the check.

    A transcript exists before it is acknowledged.
    """
    task_id = finding.task_id
    return task_id is None or (task_id in after and before.get(task_id) == after[task_id])


class _Journal(NamedTuple):
    """What a journal says, its replies by model, and what is wrong with it."""

    state: RunState
    replies: Mapping[str, int]
    damaged: Sequence[Finding]
    """On lines that are no intact frame."""
    malformed: Sequence[Finding]
    """On records that no reader takes: with a right checksum and another form, which another program wrote."""


def _read_journal(disk: Disk, layout: Layout) -> _Journal:
    state, damaged, malformed, replies = RunState(), list[Finding](), list[Finding](), Counter[str]()
    for session in journal.sessions(disk, layout):
        state.begin(session)
        path = layout.segment(session)
        for line in lines(disk.chunks(path)):
            records, is_damaged = records_of(line) if line.is_ended else ((), False)
            where = f"{path.name}: {line.size_bytes} bytes at offset {line.offset}"
            if is_damaged:
                text = f"{where} are no intact frame"
                damaged.append(Finding(FindingKind.DAMAGED, text, remedy=Remedy.MERGE))
            for record in records:
                try:
                    found = journal.entry_of(path, record)
                    if not isinstance(found, journal.ReplyFrame):
                        state.apply(found, line.offset + line.size_bytes)
                    elif found.model is not None and state.present.engines is None:
                        replies[found.model] += 1
                except RunDirectoryError as fault:
                    if fault.__cause__ is None:
                        raise  # It is of another version.
                    malformed.append(Finding(FindingKind.DAMAGED, f"{where}: {fault}"))
                except ValueError as fault:
                    words = journal.unreadable(path, record.get("kind"), record.get("id"), fault)
                    malformed.append(Finding(FindingKind.DAMAGED, f"{where}: {words}"))
    if not malformed:
        state.count_recorded(disk, layout)
    return _Journal(state, replies, damaged, malformed)


def _account_findings(found: _Journal) -> Iterator[Finding]:
    """Accounts that cannot be: fewer requests than replies that are recorded, or more play than there was time."""
    accounts = section(found.state.usage, "models")
    for model, replies in sorted(found.replies.items()):
        requests = number(section(accounts, model).get("requests")) or 0
        if requests < replies:
            text = f"the journal has {replies} replies of model {model}, and its accounts {requests:.0f} requests"
            yield Finding(FindingKind.MISMATCHED, text)
    for session in found.state.sessions:
        wall_s, played_s = (number(session.usage.get(key)) or 0.0 for key in ("wall_s", "played_s"))
        if played_s > wall_s + _ROUNDED_S:
            text = f"session {session.number} has played for {played_s} s, and was at work for {wall_s} s"
            yield Finding(FindingKind.MISMATCHED, text)


def _ending_findings(layout: Layout, ended: frozenset[str], state: RunState) -> Iterator[Finding]:
    for task_id in sorted(lost_endings(ended, state)):
        text = (
            f"{task_id}: it has ended by {layout.manifest.name}, and the journal has no ending; running the "
            "experiment again takes over its transcript, or plays it again"
        )
        yield Finding(FindingKind.LOST, text, task_id, Remedy.RUN)


def _transcript_findings(
    disk: Disk, layout: Layout, rows: _Rows, attempts: Attempts, rebuild: Rebuild
) -> Iterator[Finding]:
    for task_id, row in rows.items():
        before = attempts.get(task_id, ())
        yield from _findings(disk, layout.transcript(task_id), task_id, task_id, row, before, rebuild)


def _attempt_findings(
    disk: Disk, layout: Layout, rows: _Rows, attempts: Attempts, rebuild: Rebuild
) -> Iterator[Finding]:
    """The transcripts of retried attempts are kept like results."""
    kept = set()
    for task_id, failed in attempts.items():
        for count, row in enumerate(failed, start=1):
            path = layout.attempt(task_id, count)
            kept.add(path.name)
            what = f"{task_id}, attempt {count}"
            if TRACES in row:
                kept.add(traces_beside(path).name)
            yield from _findings(disk, path, task_id, what, row, failed[: count - 1], rebuild)
    for name in filter(attempted_task_of, disk.names(layout.attempts)):
        # A retry that was killed before it began leaves a second transcript of the conversation as it is.
        task_id = attempted_task_of(name) or ""
        if layout.holds(task_id) and name not in kept and not _is_copy(disk, layout.attempts / name, rows.get(task_id)):
            yield Finding(
                FindingKind.UNEXPECTED, f"{layout.attempts.name}/{name}: no attempt of this number is known", task_id
            )


def _is_copy(disk: Disk, path: Path, row: JsonObject | None) -> bool:
    """Whether a file is the transcript that a row acknowledges, or its traces."""
    if row is None:
        return False
    if path.suffix == TRACES_SUFFIX:
        return TRACES in row and traces_flaw(disk, path, row) is None
    return is_acknowledged(disk, path, row)


def _findings(
    disk: Disk,
    path: Path,
    task_id: str,
    what: str,
    row: JsonObject,
    before: Sequence[JsonObject],
    rebuild: Rebuild,
) -> Iterator[Finding]:
    """The findings on the transcript of an acknowledged row; `before` are the rows of earlier attempts."""

    def finding(kind: FindingKind, text: str) -> Finding:
        return Finding(kind, f"{what}: {text}", task_id)

    if disk.exists(path) and not disk.is_file(path):
        yield finding(FindingKind.DAMAGED, "its transcript is not a regular file")
        return
    try:
        data = disk.read(path) if disk.exists(path) else None
    except StoreError:
        if disk.exists(path):
            raise
        data = None  # A retry took it away.
    if data is None:
        yield finding(FindingKind.LOST, "acknowledged, and its transcript is not there")
    elif (len(data), sha256_of(data)) != (row["size_bytes"], row["sha256"]):
        yield finding(FindingKind.DAMAGED, "its transcript is not what was acknowledged")
    elif reason := _difference(task_id, data, row, before, rebuild):
        yield finding(FindingKind.MISMATCHED, reason)
    traces = traces_beside(path)
    if (flaw := traces_flaw(disk, traces, row)) is not None:
        kind = FindingKind.DAMAGED if disk.exists(traces) else FindingKind.WITHOUT_TOKENS
        yield finding(kind, f"the file of its token traces, {traces.parent.name}/{traces.name}, {flaw}")


def _difference(
    task_id: str, data: bytes, row: JsonObject, before: Sequence[JsonObject], rebuild: Rebuild
) -> str | None:
    """How a transcript differs from what its replies make, or its row from what it makes; None if neither does."""
    try:
        transcript = decode_transcript(data)
        if (found := entry(entry(transcript, "task", dict), "task_id", str)) != task_id:
            return f"its transcript is that of {found}"
        with boundary(ConversationError, "it cannot be played again"):
            rebuilt = rebuild(transcript)
        own = _differing(row, with_attempts(index_row(transcript, data), before))
        changed = _changed(transcript, rebuilt)
    except (ConversationError, ValueError) as fault:
        return str(fault)
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as fault:
        return f"it has another form inside: {type(fault).__name__} {fault!s:.80}"
    if changed:
        return f"played again it comes out different in {', '.join(changed)}"
    return f"its acknowledged row is not that of its transcript: it differs in {', '.join(own)}" if own else None


def _changed(transcript: JsonObject, rebuilt: JsonObject) -> list[str]:
    """The keys in which a transcript and the one that its replies make differ."""
    keys = {*transcript, *rebuilt} - {"timing", TRACES}
    return sorted(key for key in keys if _plain(transcript, key) != _plain(rebuilt, key))


def _differing(row: JsonObject, expected: JsonObject) -> list[str]:
    """The keys in which two rows differ, in times too."""
    return sorted(key for key in {*row, *expected} if _encoded(row, key) != _encoded(expected, key))


def _encoded(row: JsonObject, key: str) -> bytes:
    """A part of a row as bytes, so that 1, 1.0 and true differ."""
    return encode_json(row[key]) if key in row else b""


def _plain(transcript: JsonObject, key: str) -> bytes:
    """A part of a transcript as `_encoded`, without times."""
    return encode_json(without_timing(transcript[key])) if key in transcript else b""


def _foreign_notes(disk: Disk, layout: Layout) -> Iterator[str]:
    """The note on files that no run writes, if there are any: systems and people put them there."""
    if not layout.is_whole:
        return
    ours: dict[Path, Callable[[str], object]] = {
        layout.directory: lambda name: not name.startswith(".") or name in HIDDEN,
        layout.journal: lambda name: (
            session_of(name) is not None or disk.exists(layout.root / EXPERIMENTS / f"{name}.yaml")
        ),
        layout.transcripts: task_id_of,
        layout.traces: traced_task_of,
        layout.attempts: attempted_task_of,
    }
    found = [
        str((place / name).relative_to(layout.directory))
        for place, is_ours in ours.items()
        for name in disk.names(place)
        if not is_ours(name) and not name.startswith(TEMPORARY_PREFIX)
    ]
    if found:
        names = ", ".join(found[:_FOREIGN_SHOWN_MAX]) + (", …" if len(found) > _FOREIGN_SHOWN_MAX else "")
        yield f"{counted(len(found), 'files')} that no run writes ({names}): runs and readers leave them alone"


def _stray_findings(disk: Disk, layout: Layout, rows: _Rows) -> Iterator[Finding]:
    for task_id in filter(None, map(task_id_of, disk.names(layout.transcripts))):
        if task_id not in rows and layout.holds(task_id):
            text = (
                f"{layout.transcripts.name}/{task_id}.json: it was never acknowledged; a run that goes on adopts it, "
                f"or sets it aside in {layout.damaged.name}/ where it is not whole"
            )
            yield Finding(FindingKind.UNEXPECTED, text, task_id)


def _trace_notes(disk: Disk, layout: Layout, state: RunState) -> Iterator[str]:
    if strays := trace_strays(disk, layout, state):
        yield (
            f"{len(strays)} files in {layout.traces.name}/ belong to no conversation that has ended: of a process at "
            "work, or left by one that was killed; the next run removes the latter"
        )


class _Motion:
    """Whether a process is at work in a run directory while it is verified, or was in the meantime."""

    def __init__(self, disk: Disk, layout: Layout) -> None:
        self._disk = disk
        self._layout = layout
        latest = max(journal.sessions(disk, layout), default=0)
        self._seen = _at_work(disk, layout)
        self.session = latest + (self._seen is None)
        """The first session that may be at work."""

    def owner(self) -> str | None:
        """The process at work, or one that was since then, in words; None when there is none."""
        if (owner := self._seen or _at_work(self._disk, self._layout)) is not None:
            return owner
        has_begun = max(journal.sessions(self._disk, self._layout), default=0) >= self.session
        return "it was, by a process that has ended meanwhile" if has_begun else None

    def note(self, owner: str, unjudged: int) -> str:
        """The note on a check of a run under way."""
        return (
            f"the run is under way ({owner}); what is written meanwhile is not judged ({unjudged} such places): "
            "verify it again when it has ended"
        )


def _at_work(disk: Disk, layout: Layout) -> str | None:
    """A process that left a note and may be alive, in words; None when there is none."""
    holder = at_work(disk, layout.root, Machine())
    if not holder.may_work:
        return None
    if holder.is_alive:
        return str(holder.owner)
    return f"it may be: this machine cannot know whether {holder.owner} is alive"
