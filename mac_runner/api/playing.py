"""One run played on a thread of its own, with an event loop of its own.

The caller's thread only waits. So the same run can be started in a script, in a notebook whose thread runs a loop
already, and in any thread; and several runs can be played at once. Nothing of the caller's process is changed: no
signal handler, no limit, no setting of the garbage collector.

What a run reports while it is played from Python.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Literal, TypeAlias, cast

from mac_runner.clock import SystemClock
from mac_runner.errors import WeightUpdateError
from mac_runner.runs.play import Player, Results, results_if_complete
from mac_runner.runs.policies import PolicyRequest
from mac_runner.runs.setup import ExperimentSet, Setup
from mac_runner.scheduler.policies import Policies
from mac_runner.status import Display, StatusFrame
from mac_runner.threads import on_thread
from mac_runner.types import JsonObject
from mac_runner.weights import Weights

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


THREAD_NAME: Final = "mac-runner-run"
_STOPPING: Final = "stopping: waiting for the requests in flight; one more interrupt leaves them"


class Playing:
    """A run under way. `stop` and `abandon` may be called from any thread, at any time and more than once."""

    def __init__(
        self,
        prepare: Callable[[], ExperimentSet],
        *,
        wake: Callable[[], object],
        display: Display,
        concurrency: int | None,
        can_pull: bool,
        on_checked: Callable[[ExperimentSet], object] | None = None,
        policy: PolicyRequest | None = None,
    ) -> None:
        """`prepare` is called on the thread of the run; `wake` after each event and after the end, on any thread.

        `on_checked` is called there too, before anything is changed on the disk.
        """
        self.inbox = Inbox(wake)
        self._prepare = prepare
        self._on_checked = on_checked
        self._wake = wake
        self._player = Player(
            display=ReportingDisplay(display, self.inbox),
            stopping=self._stoppable,
            concurrency=concurrency,
            can_pull=can_pull,
            on_ended=self._on_ended,
            policy=policy or PolicyRequest(),
            training=self._training,
            is_process_ours=False,
        )
        self._results: Future[Results] | None = None
        self._directory: Path | None = None
        # The loop is called only while it runs: both are set and taken back under the lock.
        self._lock = Lock()
        self._is_stopping = False
        self._stop: Callable[[], object] | None = None
        self._abandon: Callable[[], object] | None = None
        self._trained: Callable[[], object] | None = None
        self._policies: Future[tuple[asyncio.AbstractEventLoop, Policies]] = Future()
        """What takes updates, once the run has its engines."""

    def start(self) -> None:
        """Begin. Raises ShortageError when there can be no further thread."""
        self._results = on_thread(self._play, THREAD_NAME)
        self._results.add_done_callback(self._ended)

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or never began."""
        return self._results is None or self._results.done()

    def directory(self) -> Path:
        """Where the results are. Raises what ended the run."""
        assert self._results is not None, "only a run that was started has results"
        self._results.result()
        assert self._directory is not None, "a run with results has a directory"
        return self._directory

    def fault(self) -> BaseException | None:
        """What ended the run, if not its own end; not that it was abandoned."""
        assert self.is_over, "asked for while it runs"
        if self._results is None or self._results.cancelled():
            return None
        fault = self._results.exception()
        return None if isinstance(fault, CancelledError | asyncio.CancelledError) else fault

    def stop(self) -> None:
        """Send nothing more, and wait for the requests in flight."""
        with self._lock:
            self._is_stopping = True
            if self._stop is not None:
                self._stop()

    def abandon(self) -> None:
        """Do not wait for the requests in flight either."""
        with self._lock:
            self._is_stopping = True
            if self._abandon is not None:
                self._abandon()

    def idle(self) -> None:
        """The caller has had all events, and waits for more: a run whose conversations have all ended may end."""
        with self._lock:
            if self._trained is not None:
                self._trained()

    async def update_weights(self, model: str, weights: Weights, version: int | None, *, blocking: bool) -> int:
        """Install weights in the engines of a model, once they are up. Raises a WeightUpdateError.

        A caller that is cancelled does not end the update.
        """
        loop, policies = await asyncio.shield(asyncio.wrap_future(self._policies))
        with self._lock:
            if self._stop is None:
                raise _over()
            updating = asyncio.run_coroutine_threadsafe(
                policies.update(model, weights, version, blocking=blocking), loop
            )
        try:
            return await asyncio.shield(asyncio.wrap_future(updating))
        except asyncio.CancelledError:
            if updating.cancelled():
                raise _over() from None
            raise

    def join(self) -> None:
        """Block until it has ended."""
        if self._results is not None:
            wait([self._results])

    def _play(self) -> Results:
        chosen = self._prepare().anchored()
        self._directory = chosen.directory
        complete = results_if_complete(chosen, SystemClock())
        if self._on_checked is not None:
            self._on_checked(chosen)
        if complete is not None:
            return complete
        for warning in chosen.warnings:
            self._player.display.say(f"warning: {warning}")
        results = self._player.play(chosen)
        for line in results.unusable:
            self._player.display.say(line)
        return results

    def _on_ended(self, setup: Setup, row: JsonObject) -> None:
        self.inbox.put(ended_event(setup, row))

    def _ended(self, _results: Future[Results]) -> None:
        if not self._policies.done():
            self._policies.set_exception(_over())
        self._wake()

    @contextmanager
    def _training(self, policies: Policies) -> Iterator[Callable[[], Coroutine[object, object, None]]]:
        """The caller may update weights inside. What it gives waits until the caller has had all conversations."""
        loop, trained = asyncio.get_running_loop(), asyncio.Event()

        async def finish() -> None:
            with self._lock:
                self._trained = lambda: loop.call_soon_threadsafe(trained.set)
            self._wake()
            await trained.wait()

        self._policies.set_result((loop, policies))
        try:
            yield finish
        finally:
            with self._lock:
                self._trained = None

    @contextmanager
    def _stoppable(self, stop: asyncio.Event) -> Iterator[None]:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a run is played in a task"

        def ask() -> None:
            if not stop.is_set():
                stop.set()
                self._player.display.say(_STOPPING)

        with self._lock:
            self._stop = lambda: loop.call_soon_threadsafe(ask)
            self._abandon = lambda: loop.call_soon_threadsafe(task.cancel)
            if self._is_stopping:
                stop.set()
        try:
            yield
        finally:
            with self._lock:
                self._stop = self._abandon = None


def wait_for(playing: Playing, woken: threading.Event, on_event: Callable[[Event], object]) -> Path:
    """Start a run, block until it has ended, and return its directory. Raises what ended it.

    An exception in this thread stops it in good order, then comes out.
    """
    try:
        playing.start()
        while True:
            is_over = playing.is_over
            for event in playing.inbox.drain():
                on_event(event)
            if is_over:
                break
            playing.idle()
            woken.wait()
            woken.clear()
    except BaseException as fault:
        try:
            playing.stop()
            playing.join()
        except BaseException:
            playing.abandon()
            playing.join()
            raise
        _note(fault, playing.fault())
        raise
    return playing.directory()


async def events_of(playing: Playing, woken: asyncio.Event) -> AsyncGenerator[Event, None]:
    """Start a run and yield its events until it has ended. Raises what ended it.

    Closing or cancelling stops it in good order.
    """
    try:
        playing.start()
        while True:
            is_over = playing.is_over
            for event in playing.inbox.drain():
                yield event
            if is_over:
                break
            playing.idle()
            await woken.wait()
            woken.clear()
    except BaseException as fault:
        try:
            playing.stop()
            await _ended(playing, woken)
        except BaseException:
            playing.abandon()
            await _ended(playing, woken)
            raise
        if isinstance(fault, GeneratorExit) and (other := playing.fault()) is not None:
            raise other from None
        _note(fault, playing.fault())
        raise
    playing.directory()


async def _ended(playing: Playing, woken: asyncio.Event) -> None:
    while not playing.is_over:
        await woken.wait()
        woken.clear()


def waker(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> Callable[[], None]:
    """Sets `woken` from any thread, unless the loop was closed."""

    def wake() -> None:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(woken.set)

    return wake


def _over() -> WeightUpdateError:
    return WeightUpdateError(
        "the run has ended, and its engines are closed: no further reply would be of these weights"
    )


def _note(fault: BaseException, other: BaseException | None) -> None:
    """Add to an exception that comes out how the run ended, if it ended badly as well."""
    if other is not None and other is not fault:
        fault.add_note(f"the run ended with {type(other).__name__}: {other}")
