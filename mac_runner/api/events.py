"""What a run reports while it is played from Python."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, TypeAlias, cast

from mac_runner.runs.setup import Setup
from mac_runner.status import Display, StatusFrame
from mac_runner.types import JsonObject

PROGRESS_INTERVAL_S = 0.5
"""Between two events of progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEnded:
    """A conversation ended, and its transcript is safe on the disk."""

    directory: Path
    """The run directory: of a grid, that of the combination."""
    task_id: str
    index: int
    """Its place in the experiment, from 0."""
    status: Literal["finished", "failed"]
    failure: str | None
    """Why it failed."""
    sha256: str
    """The digest of its transcript."""
    size_bytes: int
    """The size of its transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far the run is. `finished` and `failed` count earlier sessions too; a rate is None until it is known."""

    planned: int
    finished: int
    failed: int
    open: int
    """Conversations under way."""
    in_flight: int
    """Requests that engines work on."""
    turns_per_s: float | None
    tokens_per_s: float | None
    """Generated tokens."""
    eta_s: float | None
    """The time left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A line that `mac-run` would print: a warning, or trouble with an engine."""

    text: str


Event: TypeAlias = ConversationEnded | Progress | Notice


def ended_event(setup: Setup, row: JsonObject) -> ConversationEnded:
    """The event of a conversation, from its row of the index."""
    failure, index, size_bytes = row["failure"], row["index"], row["size_bytes"]
    assert isinstance(index, int)
    assert isinstance(size_bytes, int)
    return ConversationEnded(
        directory=setup.directory,
        task_id=str(row["task_id"]),
        index=index,
        status=cast("Literal['finished', 'failed']", row["status"]),
        failure=None if failure is None else str(failure),
        sha256=str(row["sha256"]),
        size_bytes=size_bytes,
    )


def progress_of(frame: StatusFrame) -> Progress:
    reading = frame.reading
    return Progress(
        planned=reading.planned,
        finished=reading.finished,
        failed=reading.failed,
        open=reading.open,
        in_flight=sum(model.in_flight for model in reading.models),
        turns_per_s=frame.turns_per_s,
        tokens_per_s=frame.tokens_per_s,
        eta_s=frame.eta_s,
    )


class Inbox:
    """Events on their way from the threads of a run to the one that waits for it.

    It keeps every event except outdated progress, so a slow reader costs a name for each conversation and no more.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        """`wake` is called after each event, on the thread that had it."""
        self._wake = wake
        self._events: deque[Event] = deque()
        self._lock = Lock()  # A Progress is replaced only where nothing came after it.

    def put(self, event: Event) -> None:
        """Add an event; called on any thread."""
        with self._lock:
            if isinstance(event, Progress) and self._events and isinstance(self._events[-1], Progress):
                self._events.pop()
            self._events.append(event)
        self._wake()

    def drain(self) -> Iterator[Event]:
        """The events so far and those that come meanwhile, oldest first; each is taken out."""
        while True:
            with self._lock:
                if not self._events:
                    return
                event = self._events.popleft()
            yield event


class ReportingDisplay(Display):
    """A display that passes everything on to another one, and to an inbox."""

    interval_s = PROGRESS_INTERVAL_S

    def __init__(self, display: Display, inbox: Inbox) -> None:
        self._display = display
        self._inbox = inbox
        self._shown_at_s: float | None = None
        self._frame: StatusFrame | None = None

    def start(self) -> None:
        self._display.start()

    def update(self, frame: StatusFrame) -> None:
        """Report the frame; the other display shows it if its own interval is over."""
        self._inbox.put(progress_of(frame))
        now_s = frame.reading.elapsed_s
        if self._shown_at_s is None or now_s - self._shown_at_s >= self._display.interval_s:
            self._shown_at_s, self._frame = now_s, None
            self._display.update(frame)
        else:
            self._frame = frame

    def say(self, text: str) -> None:
        """Report the line, and print it."""
        self._inbox.put(Notice(text=text))
        self._display.say(text)

    def close(self) -> None:
        """Show the last frame and close the other display."""
        if self._frame is not None:
            self._display.update(self._frame)
            self._frame = None
        self._display.close()
