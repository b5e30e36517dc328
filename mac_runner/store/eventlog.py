"""The event log: one JSON object per line, in the order things happened (pure).

Its first key is the time, so that logs of several runs can be laid one into the other without parsing a line.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from mac_runner.clock import iso
from mac_runner.store.frames import lines
from mac_runner.types import JsonObject

EVENTS: Final = frozenset(
    {
        "EVENT_CONVERSATION_DONE",
        "EVENT_CONVERSATION_RETRIED",
        "EVENT_ENGINE_DEATH",
        "EVENT_GIVE_UP",
        "EVENT_INFER_DONE",
        "EVENT_INFER_START",
        "EVENT_NETWORK_FILESYSTEM",
        "EVENT_RETRY",
        "EVENT_RUN_MERGED",
        "EVENT_RUN_REPAIRED",
        "EVENT_RUN_START",
        "EVENT_RUN_STOP",
        "EVENT_SETTINGS_CHANGED",
        "EVENT_WORK_REPEATED",
    }
)
"""Every kind of event that a run writes, or that an earlier version wrote."""

_TIME = re.compile(rb'\{"time":"([^"]*)"')
_quick = msgspec.json.Encoder().encode
_compact = json.JSONEncoder(ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")).encode


def event_line(name: str, moment: datetime, elapsed_s: float, fields: JsonObject) -> bytes:
    """One event; a number that is none is null there, for nothing is derived from this log."""
    head: JsonObject = {"time": iso(moment), "elapsed_s": round(elapsed_s, 6), "event": name}
    event = {**head, **fields}
    with suppress(UnicodeEncodeError):  # Half a surrogate pair.
        line = _quick(event)
        if line.isascii():
            return line + b"\n"
    return (_compact(event) + "\n").encode("ascii")


def in_time_order(logs: Sequence[Iterable[bytes]]) -> Iterator[bytes]:
    """The lines of several logs, each given in pieces, by their times; the lines of one log stay in their order.

    A line that a kill cut short is left out: it is no event.
    """
    return heapq.merge(*(_events(log) for log in logs), key=_time)


def _events(log: Iterable[bytes]) -> Iterator[bytes]:
    return (line.data + b"\n" for line in lines(log) if line.data.startswith(b"{") and line.data.endswith(b"}"))


def _time(line: bytes) -> bytes:
    match = _TIME.match(line)
    return match[1] if match else b""
