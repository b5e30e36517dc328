"""The state of a run: the one fold of its journal.

`RunState.apply` takes the records in the journal's order, all but the replies, and keeps what follows from them: which
conversations ended and how, the failed attempts that were retried, the deaths of engines, and what each session used.
Index rows are not kept: `rows` reads them as a stream. Memory follows the number of ended conversations, some 300
bytes each.

A conversation that ended more than once (because a broken lock let two processes in) counts for the session whose
record is the last.

The journal of a run directory, read to its end or read on while a run writes it.

A reader that looks at a run again and again must not read its journal each time. A `JournalTail` keeps how far it has
read in each segment, and folds what it reads into a `RunState`. Where it keeps replies, it has the places of those of
conversations that have not ended, so one of them can be read without a search. No reply is parsed before it is asked
for. Not for two threads at once.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeGuard

import msgspec

from mac_runner.files import Mark, mark_of
from mac_runner.plan import Shard
from mac_runner.results import section
from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.journal import (
    CheckpointFrame,
    DeathFrame,
    Entry,
    PolicyFrame,
    ReplyFrame,
    RetryFrame,
    SessionFrame,
)
from mac_runner.store.layout import Layout
from mac_runner.store.manifest import Manifest
from mac_runner.store.records import Line, blocks, encode_json, matched_lines
from mac_runner.store.rows import DoneRow, RecordedRow
from mac_runner.types import JsonObject, JsonValue, PolicyVersion, RecordedReply, TokenCount

LATEST_KEYS = frozenset({"capacity"})
"""Numbers of an accounting that are levels, not amounts: of several sessions the latest counts."""

RECORDED = "recorded"
"""What a session without accounts of its own recorded, in its checkpoints: those accounts have at least as much."""

_Amount: TypeAlias = int | float
_DIGITS = 6
"""Of seconds; what is counted is whole."""


class Ending(msgspec.Struct, frozen=True, order=True, gc=False):
    """How a conversation ended: what is kept of its index row, and where that row is.

    `sha256` is that of its transcript. `place` counts the `done` records of the session from 1. `digest` is of the row,
    or 0 where none was asked for. With `has_traces` its token traces are in a file.
    """

    task_index: int
    status: str
    size_bytes: int
    session: int
    place: int
    sha256: bytes
    digest: int = 0
    has_traces: bool = False


@dataclass(slots=True, kw_only=True)
class SessionStanding:
    """One session: what it ended, the turns of that, and what it had used at its last checkpoint.

    `run` is the run directory that a merged session comes from.
    """

    number: int
    started_at: str | None = None
    run: str | None = None
    shard: Shard | None = None
    """What a worker claimed for it; None for a session of the whole run."""
    planned: Sequence[tuple[int, int, int]] = ()
    """Of a part of a directory, the `stretches` of its tasks."""
    ended: int = 0
    turns_ended: int = 0
    usage: JsonObject = field(default_factory=dict)
    engines: Mapping[str, str] | None = None
    """Where its engines are accounted for elsewhere, their names there by model."""
    counted_to: int = 0
    """Where the frame of its last checkpoint ends in its segment."""
    since: JsonObject = field(default_factory=dict)
    """What was recorded after that, as an accounting without times (`counted`): a session that was killed left some."""
    is_counted: bool = False
    """Whether `since` has all that was read."""


class RunState:
    """What the records of a journal say up to the last one applied."""

    def __init__(self, *, with_digests: bool = False, holds: Callable[[str], bool] = lambda _task_id: True) -> None:
        """Of a part of a run it has only the tasks that this `holds`: sessions of the whole run have others too."""
        self.sessions: list[SessionStanding] = []
        """In the order of their numbers."""
        self.endings: dict[str, Ending] = {}
        """The conversations that are done."""
        self.attempts: dict[str, list[JsonObject]] = {}
        """The rows of the failed attempts that were retried, in their order, by task."""
        self.failed = 0
        """How many of the endings are failures."""
        self.deaths: dict[str, Counter[str]] = {}
        """How often an engine died on each turn, by task; only of tasks that are not done."""
        self.damaged_lines = 0
        """How many lines that were read are no intact frame, so that what they said is not known."""
        self._with_digests = with_digests
        self._holds = holds

        self.policies: dict[str, list[PolicyVersion]] = {}
        """The versions that each model had, in their order."""
        self.lags: dict[str, Counter[int]] = {}
        """How many conversations ended so many versions after the first one that played in them, by model."""

    def begin(self, session: int) -> None:
        """The records applied from now on are of this session, a new one or one begun before."""
        place = bisect_left(self.sessions, session, key=lambda known: known.number)
        if place == len(self.sessions) or self.sessions[place].number != session:
            self.sessions.insert(place, SessionStanding(number=session))
        self._session = self.sessions[place]

    def apply(self, record: Entry, end: int = 0) -> None:
        """Apply the next record, whose line ends at `end`. Raises ValueError naming the key that is wrong."""
        session = self._session
        match record:
            case DoneRow():
                self._end(record, session)
            case SessionFrame():
                session.started_at = record.started_at
                session.run = session.run if record.run is None else record.run
                session.shard = record.shard
                session.planned = record.planned or ()
                session.engines = record.served_by
            case CheckpointFrame():
                session.usage, session.counted_to, session.since = record.usage, end, {}
            case PolicyFrame():
                version = PolicyVersion(record.version, record.sha256, record.path)
                self.policies.setdefault(record.id, []).append(version)
            case DeathFrame() if self._holds(record.id):
                self.deaths.setdefault(record.id, Counter())[record.turn] += 1
            case RetryFrame() if self._holds(record.id):
                _checked(DoneRow(record.id, encode_json(record.row)))
                attempts, ending = self.attempts.setdefault(record.id, []), self.endings.pop(record.id, None)
                self.failed -= ending is not None and ending.status == "failed"
                # Two processes that open it again at once, as a broken lock lets them, write one frame each.
                if ending is not None or attempts[-1:] != [record.row]:
                    attempts.append(record.row)

    def count_recorded(self, disk: Disk, layout: Layout) -> None:
        """Take in what each session recorded after its last checkpoint; nothing else needs those replies."""
        for session in self.sessions:
            if not session.is_counted:
                path = layout.segment(session.number)
                found = counted(journal.replies_from(disk, path, session.counted_to), session.engines)
                session.since = found if session.engines is None or not found else {RECORDED: found}
                session.is_counted = True

    def _end(self, row: DoneRow, session: SessionStanding) -> None:
        session.ended += 1
        task_id = row.task_id
        # A shard may be one of hundreds, so the rows of the others are not read.
        if not self._holds(task_id):
            return
        found = _checked(row)
        session.turns_ended += found.counts.turns
        self.deaths.pop(task_id, None)
        for model, (first, _) in found.policy.items():
            if model in self.policies:
                lag = max(0, self.policies[model][-1].version - first)
                self.lags.setdefault(model, Counter())[lag] += 1
        before = self.endings.get(task_id)
        self.failed += (found.status == "failed") - (before is not None and before.status == "failed")
        self.endings[task_id] = Ending(
            task_index=found.index,
            status=sys.intern(found.status),
            size_bytes=found.size_bytes,
            session=session.number,
            place=session.ended,
            sha256=bytes.fromhex(found.sha256),
            digest=digest_of(row.json) if self._with_digests else 0,
            has_traces=found.traces is not None,
        )

    @property
    def present(self) -> SessionStanding:
        return self._session

    @property
    def reopened(self) -> set[str]:
        """The tasks that have failed, are retried, and have not ended again."""
        return self.attempts.keys() - self.endings.keys()

    @property
    def latest(self) -> SessionStanding | None:
        """The last session: of several workers at once, the one that wrote its first record last."""
        return self.sessions[-1] if self.sessions else None

    def manifest(self, experiment_name: str, planned: Mapping[str, int]) -> Manifest:
        """What is planned and what has ended, with how each of that ended."""
        indexes = {task_id: ending.task_index for task_id, ending in self.endings.items()}
        manifest = Manifest(experiment_name, {**planned, **indexes})
        for task_id, ending in self.endings.items():
            manifest.settle(task_id, ending.status)
        return manifest

    @property
    def usage(self) -> JsonObject:
        """What all sessions used, added up: their checkpoints, and what is known of later (`count_recorded`)."""
        return _added_up(self.sessions)

    @property
    def share(self) -> JsonObject:
        """What a combination adds to the use of its grid (`grid_usage`).

        That is what sessions used on engines of their own, as a retry of it alone does, and what the others `recorded`,
        whose engines the grid accounts for.
        """
        shared = _added_up(session for session in self.sessions if session.engines is not None)
        alone = _added_up(session for session in self.sessions if session.engines is None)
        return {**alone, RECORDED: section(shared, RECORDED)}

    @property
    def total(self) -> JsonObject:
        """The same, with zeros where no session has noted anything."""
        return {"wall_s": 0.0, "played_s": 0.0, "models": {}, **self.usage}

    def policies_json(self) -> JsonObject:
        """The present version of each model whose weights changed, and how old its conversations were when they ended.

        Empty where the journal names no version.
        """
        found: JsonObject = {}
        for model, versions in sorted(self.policies.items()):
            lags = self.lags.get(model, Counter())
            ended = sum(lags.values())
            mean = round(sum(lag * count for lag, count in lags.items()) / ended, 6) if ended else None
            found[model] = {
                "version": versions[-1].version,
                "sha256": versions[-1].sha256,
                "updates": len({each.version for each in versions}) - 1,
                "lag": {"mean": mean, "max": max(lags, default=None)},
            }
        return found

    def rows(self, disk: Disk, layout: Layout) -> Iterator[JsonObject]:
        """The index rows of all conversations that are done, in the order they ended; read from the journal."""
        return (found.whole() for found in self.json_rows(disk, layout))

    def json_rows(self, disk: Disk, layout: Layout) -> Iterator[DoneRow]:
        for number in [session.number for session in self.sessions if session.ended]:
            for place, found in enumerate(journal.done_rows(disk, layout, number), start=1):
                ending = self.endings.get(found.task_id)
                # A run under way may have appended more records since; they have no ending of their place.
                if ending is not None and (ending.session, ending.place) == (number, place):
                    yield found

    def accounting(self) -> JsonObject:
        """What all sessions used, how many sessions there were, and what each one ended.

        A session that was killed left no time after its last checkpoint. What it recorded there, and the conversations
        of one without any, are `untimed`, and not part of a rate.
        """
        total = self.total
        runs = {session.run for session in self.sessions if session.run is not None}
        ended = self._ended_by_session()
        untimed = [session.number for session in self.sessions if "wall_s" not in session.usage]
        conversations = sum(len(ended[number]) for number in untimed if number in ended)
        requests = sum(requests_of(session.since) for session in self.sessions)
        if conversations or requests:
            total["untimed"] = {"conversations": conversations, "requests": requests}
        parts: list[JsonValue] = [
            _part(session, ended[session.number]) for session in self.sessions if session.number in ended
        ]
        if self.damaged_lines:
            total["damaged_lines"] = self.damaged_lines
        return {**total, "sessions": len(self.sessions), "merged_runs": len(runs), "parts": parts}

    def _ended_by_session(self) -> dict[int, list[Ending]]:
        found: dict[int, list[Ending]] = {}
        for ending in sorted(self.endings.values()):
            found.setdefault(ending.session, []).append(ending)
        return found


def _added_up(sessions: Iterable[SessionStanding]) -> JsonObject:
    return reduce(merge_accounting, (part for session in sessions for part in (session.usage, session.since)), {})


def _checked(row: DoneRow) -> RecordedRow:
    """The row. Raises ValueError for one that cannot be read, or of another task."""
    if row.parsed.task_id != row.task_id:
        raise ValueError(f"its row is that of {row.parsed.task_id!r:.80}")
    return row.parsed


def digest_of(line: bytes) -> int:
    """A digest that can be summed: two sets of lines with equal sums are equal but for a negligible chance."""
    return int.from_bytes(hashlib.blake2b(line, digest_size=16).digest())


class Recorded:
    """Recorded replies as an accounting: requests and tokens by model, or by the engine that serves it."""

    def __init__(self, engines: Mapping[str, str] | None = None) -> None:
        self._engines = engines
        self._models: dict[str, list[int]] = {}

    def add(self, model: str | None, tokens: TokenCount) -> None:
        """Count one more, that a model gave. Every reply of a run passes here."""
        name = model if self._engines is None else self._engines.get(model or "")
        if name is not None:
            account = self._models.setdefault(name, [0, 0, 0, 0])
            account[0] += 1
            account[1] += tokens.prompt
            account[2] += tokens.cached
            account[3] += tokens.completion

    def accounting(self) -> JsonObject:
        models: JsonObject = {
            name: {"requests": requests, "tokens": {"prompt": prompt, "cached": cached, "completion": completion}}
            for name, (requests, prompt, cached, completion) in self._models.items()
        }
        return {"models": models} if models else {}


def counted(replies: Iterable[ReplyFrame], engines: Mapping[str, str] | None = None) -> JsonObject:
    """All of these as an accounting."""
    recorded = Recorded(engines)
    for each in replies:
        recorded.add(each.model, each.tokens)
    return recorded.accounting()


def without_counts(accounting: JsonObject) -> JsonObject:
    """An accounting without what is `counted` where it is recorded."""
    models = accounting.get("models")
    kept: JsonObject = {
        model: {key: value for key, value in account.items() if key not in {"requests", "tokens"}}
        for model, account in (models.items() if isinstance(models, dict) else ())
        if isinstance(account, dict)
    }
    return {**accounting, "models": kept}


def requests_of(accounting: JsonObject) -> int:
    models = accounting.get("models")
    accounts = models.values() if isinstance(models, dict) else ()
    found = (account.get("requests") for account in accounts if isinstance(account, dict))
    return sum(requests for requests in found if isinstance(requests, int))


def merge_accounting(total: JsonObject, session: JsonObject) -> JsonObject:
    """What one session used, added to what the sessions before it did."""
    return _combined(total, session, add)


def accounting_since(total: JsonObject, before: JsonObject) -> JsonObject:
    """What was used since `before`, which is a part of `total`: added to that it is `total`."""
    return _combined(before, total, lambda old, new: round(new - old, _DIGITS))


def at_least(accounting: JsonObject, recorded: JsonObject) -> JsonObject:
    """An accounting of engines that has at least the requests and tokens that were recorded (`counted`)."""
    return _combined(recorded, accounting, max)


def _combined(old: JsonObject, new: JsonObject, combine: Callable[[_Amount, _Amount], _Amount]) -> JsonObject:
    """Two accountings as one: amounts that both have are combined, and of anything else the new one counts."""
    found = dict(old)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict):
            found[key] = _combined(before if isinstance(before, dict) else {}, value, combine)
        elif _is_amount(before) and _is_amount(value) and key not in LATEST_KEYS:
            found[key] = combine(before, value)
        else:
            found[key] = value
    return found


def _part(session: SessionStanding, endings: list[Ending]) -> JsonObject:
    """What a session contributed to the result; `endings` in the order of their indexes."""
    run: JsonObject = {} if session.run is None else {"run": session.run}
    failed = sum(ending.status == "failed" for ending in endings)
    return {
        "session": session.number,
        **run,
        "started_at": session.started_at,
        "finished": len(endings) - failed,
        "failed": failed,
        "indexes": [[*stretch] for stretch in journal.stretches([ending.task_index for ending in endings])],
    }


def _is_amount(value: JsonValue) -> TypeGuard[_Amount]:
    return isinstance(value, int | float) and not isinstance(value, bool)


_PLACE: Final = 3
"""A place is the session, the offset and the size of a frame."""


class News(NamedTuple):
    """What was new in a journal."""

    replied: frozenset[str] = frozenset()
    """The tasks that have a new reply, where replies are kept."""
    is_anew: bool = False
    """Whether rows that were given out before count no more: `RunState.rows` has those that do."""
    is_whole: bool = True
    """Whether the journal was read to its end."""


def never() -> bool:
    """Read to the end."""
    return False


def unnoted(_row: DoneRow) -> None:
    """Rows are not needed."""


class JournalTail:
    """The journal of a run directory, as far as it was read."""

    def __init__(self, disk: Disk, layout: Layout, *, with_digests: bool = False, keeps_replies: bool = False) -> None:
        """With `keeps_replies` the replies of open conversations can be asked for."""
        self._disk = disk
        self.layout = layout
        self._with_digests = with_digests
        self._keeps_replies = keeps_replies
        self._forget()

    def _forget(self) -> None:
        self.state = RunState(with_digests=self._with_digests, holds=self.layout.holds)
        self.replied: set[str] = set()
        """The tasks that have a reply and have not ended, where replies are kept."""
        self._places: dict[str, array[int]] = {}
        self._read_to: dict[int, int] = {}
        self._marks: dict[int, Mark | None] = {}

    def read_on(
        self,
        on_row: Callable[[DoneRow], object] = unnoted,
        is_over: Callable[[], bool] = never,
        kind: type[RecordedRow] = RecordedRow,
    ) -> News:
        """Read what was appended since the last call; `on_row` takes the index row of each conversation that ended.

        Rows are read as `kind` where they fit. `is_over` is asked after each block of lines. Where it says so, the next
        call reads on from there. Raises RunDirectoryError or StoreError where the journal cannot be read.
        """
        found = {number: mark_of(self.layout.segment(number)) for number in journal.sessions(self._disk, self.layout)}
        is_anew = self._is_replaced(found)
        if is_anew:
            self._forget()
        touched: set[str] = set()
        for number, mark in found.items():
            self.state.begin(number)
            if mark is not None and mark.size_bytes == self._read_to.get(number, 0):
                continue
            self._marks.setdefault(number, mark)
            for is_replacing in self._read(number, on_row, touched, kind):
                is_anew |= is_replacing
                if is_over():
                    return News(frozenset(touched), is_anew, is_whole=False)
        return News(frozenset(touched), is_anew)

    def replies(self, task_id: str) -> list[RecordedReply]:
        """The replies of a conversation that has not ended, as far as the journal was read."""
        found: list[RecordedReply] = []
        places = self._places.get(task_id, array("Q"))
        for at in range(0, len(places), _PLACE):
            path = self.layout.segment(places[at])
            for record in self._entries_at(*places[at : at + _PLACE]):
                if isinstance(record, journal.ReplyFrame) and record.id == task_id:
                    journal.add_reply(path, found, record)
        return found

    def reply_count(self, task_id: str) -> int:
        """How many frames of replies a conversation has that has not ended."""
        return len(self._places.get(task_id, ())) // _PLACE

    def _entries_at(self, number: int, offset: int, size_bytes: int) -> Iterable[journal.Entry]:
        """What the line at a place says: nothing where it is damaged, several entries where newlines were lost."""
        path = self.layout.segment(number)
        data = b"".join(self._disk.chunks(path, offset, size_bytes))
        return journal.entries(path, Line(offset, len(data), data, True))[0]

    def _read(
        self, number: int, on_row: Callable[[DoneRow], object], touched: set[str], kind: type[RecordedRow]
    ) -> Iterator[bool]:
        """Read a segment; after each block of lines, whether rows that were given out count no more."""
        path, start = self.layout.segment(number), self._read_to.get(number, 0)
        pattern = journal.FRAME if self._keeps_replies else journal.MARK
        self.state.present.is_counted = False
        for block in blocks(self._disk.chunks(path, start)):
            if not block.is_ended:
                break
            at, is_anew, seen = start + block.offset, False, list[bytes]()
            unseen = block.data.count(b"\n") + 1
            for match, place, end in matched_lines(pattern, block.data):
                unseen -= 1
                where = number, at + place, end - place
                if match[2] == b"reply" and block.data.find(journal.START, match.end(), end) < 0:
                    touched.add(self._note(journal.id_of(match), where))
                    continue
                line = Line(place, end - place, block.data[place:end], True)
                seen.append(line.data)
                records, is_damaged = journal.entries(path, line, kind)
                self.state.damaged_lines += is_damaged
                for record in records:
                    if not isinstance(record, journal.ReplyFrame):
                        is_anew |= self._apply(path, record, at + end, on_row)
                    elif self._keeps_replies:
                        touched.add(self._note(record.id, where))
            if unseen and not self._keeps_replies:
                # Replies were skipped. An outcome may have the text of one too, and a line that lost its newline.
                unseen -= block.data.count(journal.IN_REPLIES) - sum(each.count(journal.IN_REPLIES) for each in seen)
            self.state.damaged_lines += max(0, unseen)
            self._read_to[number] = at + len(block.data) + block.dropped + 1
            yield is_anew

    def _note(self, task_id: str, place: tuple[int, int, int]) -> str:
        if task_id not in self.state.endings:
            self.replied.add(task_id)
            self._places.setdefault(task_id, array("Q")).extend(place)
        return task_id

    def _apply(self, path: Path, record: journal.Entry, end: int, on_row: Callable[[DoneRow], object]) -> bool:
        """Fold a record; whether rows that were given out count no more."""
        is_row = isinstance(record, DoneRow)
        task_id = record.task_id if isinstance(record, DoneRow) else record.id
        had = task_id in self.state.endings
        try:
            self.state.apply(record, end)
        except ValueError as fault:
            raise journal.unreadable(path, "done" if is_row else "retry", task_id, fault) from fault
        if isinstance(record, DoneRow):
            on_row(record)
        elif not isinstance(record, journal.RetryFrame):
            return False
        self.replied.discard(task_id)
        self._places.pop(task_id, None)
        return had

    def _is_replaced(self, found: Mapping[int, Mark | None]) -> bool:
        """Whether a segment that was read is gone, is another file or is shorter, or a new one comes before it."""
        latest = max(self._read_to, default=0)
        return any(number < latest for number in found.keys() - self._read_to.keys()) or any(
            number not in found or _is_other(found[number], self._marks[number], read_to)
            for number, read_to in self._read_to.items()
        )


def _is_other(now: Mark | None, before: Mark | None, read_to: int) -> bool:
    return now is not None and before is not None and (now.inode != before.inode or now.size_bytes < read_to)


def read_state(disk: Disk, layout: Layout, *, with_digests: bool = False) -> RunState:
    """The state that the journal of a run directory makes. Raises RunDirectoryError when it cannot be read."""
    tail = JournalTail(disk, layout, with_digests=with_digests)
    tail.read_on()
    return tail.state
