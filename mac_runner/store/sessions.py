"""What the sessions of a run used up, and which conversations each of them brought to an end.

Told by the journal alone, session by session. A conversation that ended more than once (because a lock was granted
twice) counts for the session whose note of it stands: the last one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeGuard

from mac_runner.store import journal
from mac_runner.store.disk import Disk
from mac_runner.store.layout import Layout
from mac_runner.store.records import entry
from mac_runner.types import JsonObject, JsonValue

LATEST_KEYS = frozenset({"capacity"})
"""Numbers of an accounting that are levels, not amounts: of several sessions the latest stands."""


@dataclass(slots=True, kw_only=True)
class _Session:
    """What is kept of one session; `run` is the run directory it was merged from."""

    started_at: str | None = None
    run: str | None = None
    usage: JsonObject = field(default_factory=dict)
    turns: int = 0


def accounting(disk: Disk, layout: Layout) -> JsonObject:
    """The last checkpoint of each session added up, how many there were, and their parts in the result.

    A session that was killed before its first checkpoint left no time; what it ended is `untimed`, and is no part of
    a rate.
    """
    sessions: dict[int, _Session] = {}
    endings = _Endings()
    for number in journal.sessions(disk, layout):
        sessions[number] = session = _Session()
        for mark in journal.marks_of(disk, layout, number):
            _take(mark, number, session, endings)
    total = merge_accountings(session.usage for session in sessions.values())
    runs = {session.run for session in sessions.values() if session.run is not None}
    told = [*_parts(sessions, endings)]
    untimed = {number: session.turns for number, session in sessions.items() if "wall_s" not in session.usage}
    if ended := [part for part in told if part["session"] in untimed]:
        conversations = sum(entry(part, "finished", int) + entry(part, "failed", int) for part in ended)
        total["untimed"] = {"conversations": conversations, "turns": sum(untimed.values())}
    parts: list[JsonValue] = [*told]
    return {**total, "sessions": len(sessions), "merged_runs": len(runs), "parts": parts}


def usage_of(checkpoint: JsonObject) -> JsonObject:
    """What a session had used up at a checkpoint: `wall_s`, of that `played_s`, and the account of each of `models`.

    Journals of earlier versions have no `played_s`. There all of `wall_s` stands for it, the start of the engines
    included, and a model was played as long as the slots it had at last account for.
    """
    usage = entry(checkpoint, "usage", dict)
    if "played_s" in usage:
        return usage
    models = usage.get("models")
    accounts = models if isinstance(models, dict) else {}
    played: JsonObject = {name: _played(account) for name, account in accounts.items()}
    return {**usage, "played_s": usage.get("wall_s"), "models": played}


def _played(account: JsonValue) -> JsonValue:
    if not isinstance(account, dict):
        return account
    available_slot_s, slots = account.get("available_slot_s"), account.get("slots")
    if not (_is_amount(available_slot_s) and _is_amount(slots) and slots):
        return account
    return {**account, "played_s": round(available_slot_s / slots, 6)}


def merge_accountings(usages: Iterable[JsonObject]) -> JsonObject:
    """What several sessions used up, added."""
    total: JsonObject = {"wall_s": 0.0, "played_s": 0.0, "models": {}}
    for usage in usages:
        total = merge_accounting(total, usage)
    return total


def merge_accounting(total: JsonObject, session: JsonObject) -> JsonObject:
    """Add what one session used up to what the sessions before it did."""
    merged = dict(total)
    for key, value in session.items():
        merged[key] = _added(key, merged.get(key), value)
    return merged


class _Endings:
    """Which session ended the conversation of each index; memory follows the number of conversations, thinly."""

    def __init__(self) -> None:
        # The session's number, negative for a conversation that failed; 0 for none.
        self._by_index = array("q")

    def add(self, index: int, session: int, *, is_failed: bool) -> None:
        """Note an ending; a later one of the same conversation takes its place."""
        if (missing := index + 1 - len(self._by_index)) > 0:
            self._by_index.extend(bytes(missing))
        self._by_index[index] = -session if is_failed else session

    def remove(self, index: int) -> None:
        """The conversation is open again."""
        if index < len(self._by_index):
            self._by_index[index] = 0

    def by_session(self) -> dict[int, tuple[int, int, array[int]]]:
        """For each session how many finished and failed, and the indexes of all of them in order."""
        found: dict[int, tuple[int, int, array[int]]] = {}
        for index, noted in enumerate(self._by_index):
            if noted:
                finished, failed, indexes = found.get(abs(noted), (0, 0, array("q")))
                indexes.append(index)
                found[abs(noted)] = (finished + (noted > 0), failed + (noted < 0), indexes)
        return found


def _take(mark: JsonObject, number: int, session: _Session, endings: _Endings) -> None:
    match mark["kind"]:
        case "session":
            session.started_at = str(mark.get("started_at"))
            session.run = str(mark["run"]) if "run" in mark else None
        case "checkpoint":
            session.usage = usage_of(mark)
        case "retry":
            endings.remove(entry(entry(mark, "row", dict), "index", int))
        case "done":
            row = entry(mark, "row", dict)
            session.turns += entry(entry(row, "counts", dict), "turns", int)
            endings.add(entry(row, "index", int), number, is_failed=row["status"] == "failed")
        case _:
            pass


def _parts(sessions: dict[int, _Session], endings: _Endings) -> Iterator[JsonObject]:
    """One entry for each session that ended any conversation."""
    ended = endings.by_session()
    for number, session in sessions.items():
        if number not in ended:
            continue
        finished, failed, indexes = ended[number]
        run: JsonObject = {} if session.run is None else {"run": session.run}
        yield {
            "session": number,
            **run,
            "started_at": session.started_at,
            "finished": finished,
            "failed": failed,
            "indexes": [*stretches(indexes)],
        }


def stretches(indexes: array[int]) -> Iterator[JsonValue]:
    """Ascending indexes in short, as first, last and step: 0, 1, 2, 7, 11, 15 are [0, 2, 1] and [7, 15, 4]."""
    place = 0
    while place < len(indexes):
        last = place
        step = indexes[place + 1] - indexes[place] if place + 1 < len(indexes) else 1
        while last + 1 < len(indexes) and indexes[last + 1] - indexes[last] == step:
            last += 1
        # Any two numbers are a stretch of some step, which tells nobody anything.
        if step > 1 and last == place + 1:
            last, step = place, 1
        yield [indexes[place], indexes[last], step]
        place = last + 1


def _added(key: str, old: JsonValue, new: JsonValue) -> JsonValue:
    if isinstance(new, dict):
        return merge_accounting(old if isinstance(old, dict) else {}, new)
    if _is_amount(old) and _is_amount(new) and key not in LATEST_KEYS:
        return old + new
    return new


def _is_amount(value: JsonValue) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
