"""The check of `events.jsonl`: whether it is a log of events, and agrees with the journal.

An event is written after what it describes, and is not synced. So after a kill or a power cut events may be missing, a
line may be cut short, and a part may read as zeros: that is legal. What is there must be an event of a known kind. Its
reply must be in the journal or in a transcript; each ending and each retried attempt must be in the journal. Times,
addresses and retries are known to the log alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import NamedTuple

import msgspec

from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout
from mac_runner.store.records import EVENTS, decode_json, entry, lines, recorded_from_json
from mac_runner.store.transcripts import read_published, replies_of
from mac_runner.structs import convert
from mac_runner.types import JsonObject, JsonValue, RecordedReply

_HEAD = b'{"time":"'
_LITERAL_CHARS_MAX = len("\\u001")

Claim = tuple[JsonValue, ...]


class FindingKind(StrEnum):
    """What can be wrong."""

    LOST = "lost"
    WITHOUT_TOKENS = "without tokens"
    """The conversation is there, and the file of its token traces is gone."""
    DUPLICATED = "duplicated"
    UNEXPECTED = "unexpected"
    DAMAGED = "damaged"
    MISMATCHED = "mismatched"


class Remedy(Enum):
    """What brings back what is lost or damaged, as far as anything does."""

    REPAIR = auto()
    RUN = auto()
    """The same command again, which writes the file."""
    MERGE = auto()
    """Into another directory: damaged lines of the journal stay behind."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, in words; `task_id` is the task it is about, if it is about one."""

    kind: FindingKind
    text: str
    task_id: str | None = None
    remedy: Remedy = Remedy.REPAIR


class _Event(msgspec.Struct):
    """What every event has."""

    time: str
    elapsed_s: float
    event: str


class _Place(NamedTuple):
    """Where a claim was made."""

    offset: int
    event: str
    claim: Claim


@dataclass(slots=True)
class _Claims:
    """What the log says that the journal must say too, by its hash; memory follows the number of replies."""

    places: dict[int, int] = field(default_factory=dict)
    repeated: set[JsonValue] = field(default_factory=set)

    def add(self, claim: Claim, offset: int) -> None:
        self.places.setdefault(hash(claim), offset)

    def confirm(self, claim: Claim) -> None:
        self.places.pop(hash(claim), None)


def event_findings(disk: Disk, layout: Layout, *, is_journal_whole: bool) -> Iterator[Finding]:
    """The findings on the event log of a run, or of a grid, which has no conversations of its own.

    Where frames of the journal are damaged, `is_journal_whole` is false, and what they may have held is not missed.
    """
    claims = _Claims()
    yield from _line_findings(disk, layout, claims)
    if not claims.places:
        return
    # Read after the log: of a run under way it then has everything that the log has.
    for claim in _facts(disk, layout):
        claims.confirm(claim)
    if claims.places and is_journal_whole:
        doubted = {str(place.claim[1]) for place in _places(disk, layout, claims)}
        for claim in _transcript_facts(disk, layout, doubted):
            claims.confirm(claim)
    if claims.places and is_journal_whole:
        yield from _claim_findings(disk, layout, claims)


def _line_findings(disk: Disk, layout: Layout, claims: _Claims) -> Iterator[Finding]:
    cuts_left = len(journal.sessions(disk, layout))
    for line in lines(disk.chunks(layout.events)):
        problem, event = None, _decoded(line.data)
        if event is not None:
            problem = _problem(event)
        elif line.is_ended and b"\0" not in line.data:
            # A kill cuts the last write of a session; the next session begins a line of its own.
            cuts_left -= 1
            is_cut = cuts_left > 0 and _is_cut(line.data)
            problem = None if is_cut else "it is not an event"
        if problem is not None:
            yield Finding(FindingKind.DAMAGED, f"{layout.events.name}: the line at offset {line.offset}: {problem}")
        elif event is not None:
            _take(event, line.offset, claims)


def _take(event: JsonObject, offset: int, claims: _Claims) -> None:
    if event["event"] == "EVENT_WORK_REPEATED":
        claims.repeated.add(event.get("task"))
    elif (claim := _claim(event)) is not None:
        claims.add(claim, offset)


def _claim(event: JsonObject) -> Claim | None:
    """What an event says that the journal says too."""
    match event["event"]:
        case "EVENT_INFER_DONE":
            if event.get("is_dropped"):
                return None
            details = [_plain(event[key]) for key in ("tokens_out", "finish_reason") if key in event]
            return ("reply", _plain(event.get("task")), _plain(event.get("turn")), *details)
        case "EVENT_CONVERSATION_DONE":
            return ("ending", *(_plain(event.get(key)) for key in ("task", "status", "failure", "turns")))
        case "EVENT_CONVERSATION_RETRIED":
            return ("retry", *(_plain(event.get(key)) for key in ("task", "attempt", "failure")))
        case _:
            return None


def _facts(disk: Disk, layout: Layout) -> Iterator[Claim]:
    """What the journal says, as claims."""
    attempts: dict[str, int] = {}
    for session in journal.sessions(disk, layout):
        for record in journal.marks_of(disk, layout, session, "reply", "done", "retry"):
            task_id = entry(record, "id", str)
            if record["kind"] == "reply":
                yield from _reply_facts(task_id, recorded_from_json(record, has_trace=False))
                continue
            row = entry(record, "row", dict)
            turns = entry(entry(row, "counts", dict), "turns", int)
            yield ("ending", task_id, entry(row, "status", str), _plain(row.get("failure")), turns)
            if record["kind"] == "retry":
                attempts[task_id] = attempts.get(task_id, 0) + 1
                yield ("retry", task_id, attempts[task_id], _plain(row.get("failure")))


def _reply_facts(task_id: str, recorded: RecordedReply) -> Iterator[Claim]:
    about: Claim = ("reply", task_id, recorded.turn_key)
    yield about
    yield (*about, recorded.reply.tokens.completion, str(recorded.reply.finish_reason))


def _transcript_facts(disk: Disk, layout: Layout, task_ids: Iterable[str]) -> Iterator[Claim]:
    """The replies in the transcripts of some tasks: known from there where a frame was damaged."""
    for task_id in task_ids:
        with suppress(ValueError, StoreError, RunDirectoryError):
            for recorded in replies_of(read_published(disk, layout, task_id).transcript):
                yield from _reply_facts(task_id, recorded)


def _claim_findings(disk: Disk, layout: Layout, claims: _Claims) -> Iterator[Finding]:
    """Each claim that the journal does not confirm, with what the journal says instead."""
    places = [place for place in _places(disk, layout, claims) if place.claim[1] not in claims.repeated]
    wanted = {_subject(place.claim) for place in places}
    known: dict[Claim, list[Claim]] = {}
    for fact in _facts(disk, layout):
        if _subject(fact) in wanted and len(fact) != len(_subject(fact)):
            known.setdefault(_subject(fact), []).append(fact)
    for place in places:
        subject = _subject(place.claim)
        said = f"{layout.events.name}: the line at offset {place.offset}: {place.event} of {_named(subject)}"
        task_id = subject[1] if isinstance(subject[1], str) else None
        if subject in known:
            found, expected = _details(place.claim), _details(known[subject][-1])
            yield Finding(FindingKind.MISMATCHED, f"{said} says {found}, expected {expected}", task_id)
        else:
            yield Finding(FindingKind.UNEXPECTED, f"{said}: the journal has no such {subject[0]}", task_id)


def _places(disk: Disk, layout: Layout, claims: _Claims) -> Iterator[_Place]:
    offsets = set(claims.places.values())
    for line in lines(disk.chunks(layout.events)):
        if line.offset in offsets and (event := _decoded(line.data)) is not None:
            claim = _claim(event)
            if claim is not None:
                yield _Place(line.offset, str(event["event"]), claim)


def _subject(claim: Claim) -> Claim:
    """What a claim is about: a reply by its turn, an ending by its task, an attempt by its number."""
    return claim[:2] if claim[0] == "ending" else claim[:3]


def _named(subject: Claim) -> str:
    return ", ".join(str(part) for part in subject[1:])


def _details(claim: Claim) -> str:
    names = {
        "reply": ("tokens_out", "finish_reason"),
        "ending": ("status", "failure", "turns"),
        "retry": ("failure",),
    }[str(claim[0])]
    values = claim[len(_subject(claim)) :]
    return ", ".join(f"{name} {json.dumps(value):.80}" for name, value in zip(names, values, strict=False))


def _decoded(data: bytes) -> JsonObject | None:
    """The object in a line; None when there is none."""
    try:
        event = decode_json(data)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) else None


def _problem(event: JsonObject) -> str | None:
    """Why an object is not an event; None when it is one."""
    try:
        name = convert(event, _Event).event
    except ValueError as fault:
        return str(fault)
    return None if name in EVENTS else f"no run writes an event {name!r:.80}"


def _is_cut(data: bytes) -> bool:
    """Whether a line is the beginning of an event."""
    if not (data.startswith(_HEAD) or _HEAD.startswith(data)):
        return False
    try:
        json.loads(data)
    except json.JSONDecodeError as fault:
        text = fault.doc
        return fault.msg.startswith("Unterminated string") or len(text) - fault.pos <= _LITERAL_CHARS_MAX
    except ValueError:
        return False
    return False


def _plain(value: JsonValue) -> JsonValue:
    """A value that can be part of a claim; 1 and true differ."""
    return value if isinstance(value, str | int | float | None) and not isinstance(value, bool) else repr(value)
