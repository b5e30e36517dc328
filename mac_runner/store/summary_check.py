"""Whether `summary.json` is what the run directory makes of it.

A summary is written at the end of a session and says how many sessions there were. Everything in it follows from the
journal of these sessions, its times too, so it is made again of them and compared. One that an earlier session wrote
is right as well: the sessions behind it were killed, or are under way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from mac_runner.store import journal
from mac_runner.store.discrepancies import discrepancies
from mac_runner.store.disk import Disk
from mac_runner.store.findings import Finding, FindingKind
from mac_runner.store.layout import Layout
from mac_runner.store.reader import RunContents, read_run
from mac_runner.store.records import upgraded_tokens
from mac_runner.types import JsonObject, JsonValue

Summarise = Callable[[RunContents], JsonObject]

REWRITTEN = "remove it and run the same command again: it is written anew"


def read_json(disk: Disk, path: Path, remedy: str = REWRITTEN) -> JsonObject | Finding | None:
    """The object that a file holds, what is wrong with it, or None when there is no file."""
    if not disk.exists(path):
        return None
    try:
        found = json.loads(disk.read(path))
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (ValueError, RecursionError) as fault:
        return Finding(kind=FindingKind.DAMAGED, text=f"{path.name} cannot be read ({fault}); {remedy}")
    return found


def summary_findings(disk: Disk, layout: Layout, found: JsonObject, summarise: Summarise) -> Iterator[Finding]:
    """What in a summary is not what its sessions make of it."""
    sessions = sessions_of(found, len(journal.sessions(disk, layout)))
    is_latest = sessions is None
    expected = summarise(read_run(layout.directory, disk=disk, sessions=sessions))
    if not is_latest:
        expected = with_planned_of(expected, found)
    yield from compared(layout.summary.name, found, expected)


def compared(name: str, found: JsonObject, expected: JsonObject, remedy: str = REWRITTEN) -> Iterator[Finding]:
    """The places where a summary differs from the one expected. One of format 1 may have fewer keys, or others."""
    is_old = "format" not in found
    for place in discrepancies(upgraded_summary(found) if is_old else found, expected, is_partial=is_old):
        yield Finding(kind=FindingKind.MISMATCHED, text=f"{name}: {place}; {remedy}")


def sessions_of(found: JsonObject, known: int) -> int | None:
    """Of how many sessions a summary tells, when these are fewer than are `known`; else None, for all."""
    sessions = found.get("sessions")
    is_earlier = isinstance(sessions, int) and not isinstance(sessions, bool) and 0 < sessions < known
    return sessions if is_earlier and isinstance(sessions, int) else None


def with_planned_of(expected: JsonObject, found: JsonObject) -> JsonObject:
    """The summary expected of earlier sessions, with the plan that `found` tells of.

    How many conversations were planned then is kept nowhere else. It cannot be fewer than had ended, nor more than are
    planned now.
    """
    counts, claimed = expected.get("conversations"), found.get("conversations")
    if not isinstance(counts, dict) or not isinstance(claimed, dict):
        return expected
    planned, ended = claimed.get("planned"), (counts.get("finished"), counts.get("failed"), counts.get("planned"))
    finished, failed, most = (count if isinstance(count, int) else 0 for count in ended)
    is_possible = isinstance(planned, int) and not isinstance(planned, bool) and finished + failed <= planned <= most
    return {**expected, "conversations": {**counts, "planned": planned}} if is_possible else expected


def upgraded_summary(found: JsonObject) -> JsonObject:
    """A summary of format 1 with its tokens in this one's layout."""
    tokens: JsonValue = found.get("tokens")
    return {**found, "tokens": upgraded_tokens(tokens)} if isinstance(tokens, dict) else found
