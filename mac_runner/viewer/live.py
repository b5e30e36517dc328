"""What open pages are sent while a run goes on: server-sent events.

Each run that a page looks at is polled by one task. A poll compares sizes of files, and reads what was appended. A
stream sends what is new since it was last awake, so a slow page gets fewer and larger messages.

| event | data |
|---|---|
| `rows` | IndexColumns from `since` on: the conversations that ended. A stream begins with one of no rows |
| `standing` | RunPage |
| `touched` | the numbers of conversations with new replies that have not ended |
| `engines` | EnginesPage |
| `trouble` | `{"error": words}` while the run or a part of it cannot be read, and without words when all can be |

The id of an event is `version.rows`. A browser that connects again sends the last one, and the stream goes on there. A
page whose list has not `since` rows, or is of another version, asks for `/api/index`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from mac_runner.clock import Clock
from mac_runner.errors import MacRunnerError
from mac_runner.view_model import IndexColumns
from mac_runner.viewer.follower import NotThereError
from mac_runner.viewer.packing import encoded
from mac_runner.viewer.source import Pulse, RunSource

T = TypeVar("T")

ROWS_MAX: Final = 2_000
"""So many rows are sent in one event."""
_PULSE: Final = "pulse"
_ROWS: Final = "rows"
_STANDING: Final = "standing"
_ENGINES: Final = "engines"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often things are looked at and sent, in seconds."""

    poll_s: float = 0.7
    standing_s: float = 2.0
    engines_s: float = 3.0
    alive_s: float = 15.0
    """After so long without an event a comment is sent, by which the server notices that a browser has gone."""


class Work(Protocol):
    """Calls a function on a worker thread."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]:
        """What the function returns."""
        ...


@dataclass(slots=True)
class Cursor:
    """How much of the list a page has. `version` is None for a page that has not said so."""

    version: int | None = None
    rows: int = 0


def cursor_of(event_id: str) -> Cursor:
    """The cursor that the id of an event names; a new one for any other text."""
    version, _, rows = event_id[:40].partition(".")
    with suppress(ValueError):
        return Cursor(int(version), max(int(rows), 0))
    return Cursor()


class Live:
    """The polls and the streams of one server. `work` and `engines_work` call the source on its two threads."""

    def __init__(
        self, source: RunSource, work: Work, engines_work: Work, clock: Clock, pace: Pace | None = None
    ) -> None:
        self.source = source
        self.work = work
        self.engines_work = engines_work
        self.clock = clock
        self.pace = pace or Pace()
        self.is_closing = False
        self._streams: dict[str, list[_Stream]] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        self.is_closing = True
        for streams in self._streams.values():
            for stream in streams:
                stream.wake()
        polls = [*self._polls.values()]
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)

    @asynccontextmanager
    async def events(self, slug: str, cursor: Cursor) -> AsyncIterator[AsyncIterator[bytes]]:
        """The events of a run, encoded, from the cursor on, until the server closes."""
        stream = _Stream(self, slug, cursor)
        streams = self._streams.setdefault(slug, [])
        streams.append(stream)
        if slug not in self._polls:
            self._polls[slug] = asyncio.create_task(self._poll(slug))
        try:
            yield stream.events()
        finally:
            streams.remove(stream)
            if not streams and (poll := self._polls.pop(slug, None)) is not None:
                poll.cancel()

    async def _poll(self, slug: str) -> None:
        while True:
            pulse, trouble = None, ""
            try:
                pulse = await self.work(lambda: self.source.pulse(slug))
            except MacRunnerError as fault:
                trouble = str(fault)
            for stream in self._streams[slug]:
                stream.notice(pulse, trouble)
            await self.clock.sleep(self.pace.poll_s)


class _Stream:
    """What one page has been sent, and what it is owed."""

    def __init__(self, live: Live, slug: str, cursor: Cursor) -> None:
        self._live = live
        self._slug = slug
        self._cursor = cursor
        self._news = asyncio.Event()
        self._pulse: Pulse | None = None
        self._faults: dict[str, str] = {}
        """What cannot be read now, and why."""
        self._told_fault = ""
        self._touched: set[int] = set()
        self._owed: set[str] = set()
        self._sent_s: dict[str, float] = {}
        self._pauses = {_STANDING: live.pace.standing_s, _ENGINES: live.pace.engines_s}

    def wake(self) -> None:
        """Have the stream look whether there is something to send."""
        self._news.set()

    def notice(self, pulse: Pulse | None, trouble: str) -> None:
        """Take the result of a poll."""
        # Rows that could not be read are asked for again with the next poll that finds the run well.
        is_news = trouble != self._faults.get(_PULSE, "") or (_ROWS in self._faults and not trouble)
        is_news |= pulse is not None and (pulse != self._pulse or bool(pulse.touched))
        self._note(_PULSE, trouble)
        if pulse is not None:
            if is_news:
                # The event log is as large as the journal: it is read after that.
                self._owed |= {_STANDING} if pulse.is_reading else {_STANDING, _ENGINES}
            self._touched |= pulse.touched
            self._pulse = pulse
        if is_news:
            self._news.set()

    def _note(self, what: str, why: str = "") -> None:
        """Keep why something cannot be read; empty once it can be."""
        if why:
            self._faults[what] = why
        else:
            self._faults.pop(what, None)

    async def events(self) -> AsyncIterator[bytes]:
        """The events, and a comment where there are none for long."""
        while True:
            is_woken = await self._rest()
            if self._live.is_closing:
                return
            found = [event async for event in self._new()] if is_woken else []
            due = sorted(name for name in self._owed if self._wait_s(name) <= 0)
            found += [event for name in due if (event := await self._page(name))]
            if (fault := next(iter(self._faults.values()), "")) != self._told_fault:
                self._told_fault = fault
                found.insert(0, _event("trouble", encoded({"error": fault})))
            if found or not is_woken:
                yield b"".join(found) or b": alive\n\n"

    async def _rest(self) -> bool:
        """Wait for news, until a page that is owed is due, or until the browser is to be tried; whether news came."""
        pause_s = min([self._live.pace.alive_s, *map(self._wait_s, self._owed)])
        try:
            async with asyncio.timeout(max(0.001, pause_s)):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    def _wait_s(self, name: str) -> float:
        due_s = self._sent_s.get(name, float("-inf")) + self._pauses[name]
        return due_s - self._live.clock.monotonic_s()

    async def _new(self) -> AsyncIterator[bytes]:
        try:
            async for event in self._rows():
                yield event
            self._note(_ROWS)
        except MacRunnerError as fault:
            self._note(_ROWS, str(fault))
        if self._touched:
            touched, self._touched = sorted(self._touched), set()
            yield _event("touched", encoded(touched))

    async def _rows(self) -> AsyncIterator[bytes]:
        pulse, cursor = self._pulse, self._cursor
        if pulse is None or pulse.rows is None:
            return
        if cursor.version is None:
            # The page has a list from before the stream: it learns how long the list is now, and asks for the rest.
            cursor.version, cursor.rows = pulse.version, pulse.rows
            yield (await self._rows_event())[0]
        is_behind = cursor.version != pulse.version or cursor.rows < pulse.rows
        while is_behind:
            event, is_full = await self._rows_event()
            yield event
            # The list may have been made anew since the pulse, so its version is not waited for.
            is_behind = is_full and cursor.rows < pulse.rows

    async def _rows_event(self) -> tuple[bytes, bool]:
        """An event with the rows from the cursor on, which moves the cursor; whether it has as many as it may."""
        cursor, source, slug = self._cursor, self._live.source, self._slug
        since, version = cursor.rows, cursor.version

        def work() -> tuple[IndexColumns, bytes]:
            columns = source.index(slug, since, version, ROWS_MAX)
            return columns, encoded(columns)

        columns, data = await self._live.work(work)
        cursor.version, cursor.rows = columns.version, columns.since + columns.rows
        return _event("rows", data, f"{cursor.version}.{cursor.rows}"), columns.rows == ROWS_MAX

    async def _page(self, name: str) -> bytes:
        """An event with a page that is due; nothing where it cannot be made now, which is tried again after a pause."""
        self._owed.discard(name)
        source, slug = self._live.source, self._slug
        try:
            if name == _STANDING:
                data = await self._live.work(lambda: encoded(source.run(slug)))
            else:
                data = await self._live.engines_work(lambda: encoded(source.engines(slug)))
            self._note(name)
        except MacRunnerError as fault:
            # The next pulse may be as the last one was, and then asks for nothing.
            self._owed.add(name)
            # Some runs have no log of their engines.
            self._note(name, "" if isinstance(fault, NotThereError) else str(fault))
            data = b""
        self._sent_s[name] = self._live.clock.monotonic_s()
        return _event(name, data) if data else b""


def _event(name: str, data: bytes, event_id: str = "") -> bytes:
    """An event as bytes. JSON has no line break, so the data is one line."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"
