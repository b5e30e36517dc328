"""The displays: a live picture, a progress bar, plain lines, or nothing; and which of them a run gets.

All write to one stream, stderr, and only when they are updated: there is no refreshing thread. A display may cost a run
nothing, so `Expendable` drops the frames a stalled terminal has no room for, and ends the view of one that went away.
The cursor is never hidden: a run killed in whatever way leaves the terminal as it was.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment
from tqdm import tqdm

from mac_runner.clock import Clock
from mac_runner.printable import printable
from mac_runner.status.frame import StatusFrame
from mac_runner.status.picture import line, picture, quantity, time_left

STATUS_INTERVAL_S: Final = 0.5
"""Between two frames of the live view."""
STATUS_PLAIN_INTERVAL_S: Final = 10.0
"""Between two plain lines."""


class Display:
    """Shows frames; this one shows nothing."""

    interval_s: float = STATUS_PLAIN_INTERVAL_S
    """The least time between two updates."""

    def start(self) -> None:
        """Get ready to show; called once."""

    def update(self, frame: StatusFrame) -> None:
        """Show `frame` now."""

    def say(self, text: str) -> None:
        """Print one line without disturbing what is shown."""

    def close(self) -> None:
        """Leave the last frame on the screen and the cursor on a new line; safe to call twice."""


@contextmanager
def progress_bar(stream: TextIO, what: str, *, total: int) -> Iterator[Callable[[], object]]:
    """A bar over `total` steps while the block runs; yields a function that advances it. Empty unless on a terminal."""
    with _Bar(total=total, desc=printable(what), file=stream, disable=not stream.isatty(), leave=False) as bar:
        yield bar.update


def choose_display(stream: TextIO, *, live: bool | None = None, quiet: bool = False, has_bar: bool = False) -> Display:
    """The display for `stream`: `live` forces the live view or forbids it, None leaves it to the stream.

    `has_bar` makes it a bar also where the stream is not a terminal, unless the live view was chosen.
    """
    if quiet:
        return Display()
    is_terminal = stream.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"}
    if live or (live is None and is_terminal):
        return Expendable(LiveDisplay(stream), stream)
    if is_terminal or has_bar:
        return Expendable(BarDisplay(stream), stream)
    return Expendable(PlainDisplay(stream), stream)


async def tick(display: Display, read_frame: Callable[[], StatusFrame], clock: Clock) -> None:
    """Update `display` every `display.interval_s` seconds until cancelled; then once more, and close it.

    Cancelling is the way to stop it, so the last frame is shown at once and not an interval late::

        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(tick(display, read_frame, clock))
            try:
                await run()
            finally:
                ticking.cancel()
    """
    display.start()
    try:
        while True:
            display.update(read_frame())
            await clock.sleep(display.interval_s)
    finally:
        try:
            display.update(read_frame())
        finally:
            display.close()


class PlainDisplay(Display):
    """One line per update, without control characters: for a log file or a batch job. Begins once engines run."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, frame: StatusFrame) -> None:
        if frame.reading.models:
            self.say(line(frame))

    def say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()


class _Bar(tqdm):  # type: ignore[type-arg]
    """A tqdm bar without its monitor thread: it is drawn only on request."""

    monitor_interval = 0


# A lock of its own, because the default one also opens a semaphore for other processes.
_Bar.set_lock(threading.RLock())


class BarDisplay(Display):
    """A tqdm bar on one line of a terminal."""

    interval_s = STATUS_INTERVAL_S

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: _Bar | None = None

    def update(self, frame: StatusFrame) -> None:
        reading = frame.reading
        if self._bar is None:
            self._bar = _Bar(
                total=reading.planned,
                initial=reading.ended,
                desc=printable(reading.experiment_name),
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}%|{bar:16}| {n_fmt}/{total_fmt}{postfix}",
                delay=float("inf"),  # Not drawn before its postfix is known.
            )
            self._bar.delay = 0
        self._bar.n = reading.ended
        in_flight = sum(model.in_flight for model in reading.models)
        slots = sum(model.slots for model in reading.models)
        self._bar.set_postfix_str(
            f"failed {reading.failed}, in flight {in_flight}/{slots}, "
            f"{quantity(frame.turns_per_s)} turns/s, {time_left(frame)}",
            refresh=False,
        )
        self._bar.refresh()

    def say(self, text: str) -> None:
        _Bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _OpenConsole(Console):
    """A rich console that never hides the cursor and leaves a broken pipe to its caller."""

    def show_cursor(self, show: bool = True) -> bool:
        """Show the cursor, even when asked to hide it: after a SIGKILL it would stay hidden."""
        return super().show_cursor(True)

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError instead of ending the process."""
        self.quiet = True
        raise


class LiveDisplay(Display):
    """The live picture, redrawn in place by rich."""

    interval_s = STATUS_INTERVAL_S

    def __init__(self, stream: TextIO) -> None:
        self._console = _OpenConsole(file=stream, force_terminal=True, markup=False, emoji=False, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        self._width = 0
        """The width of the last picture."""

    def start(self) -> None:
        self._live.start()

    def update(self, frame: StatusFrame) -> None:
        size = self._console.size
        if size.width < self._width:
            self._erase_wrapped(self._width, size.width)
        self._width = size.width
        self._live.update(picture(frame, width=size.width, height=size.height), refresh=True)

    def _erase_wrapped(self, before: int, width: int) -> None:
        """Erase the rows that a narrowed terminal added to the last picture by wrapping its lines.

        rich moves up by the lines it drew, and the wrapped remainder would stay above the next picture.
        """
        options = self._console.options.update(width=before)
        lines = self._console.render_lines(self._live.renderable, options, pad=False)
        rows = sum(max(1, -(-Segment.get_line_length(line) // width)) for line in lines)
        for _ in range(rows - len(lines)):
            self._console.control(Control((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)))

    def say(self, text: str) -> None:
        self._console.print(text)

    def close(self) -> None:
        self._live.stop()


class Expendable(Display):
    """A display whose terminal may stall or vanish without the run noticing."""

    def __init__(self, display: Display, stream: TextIO) -> None:
        self.display = display
        """The display that does the drawing."""
        self.interval_s = display.interval_s
        self._stream = stream
        self._is_gone = False

    def start(self) -> None:
        self._attempt(self.display.start)

    def update(self, frame: StatusFrame) -> None:
        self._attempt(lambda: self.display.update(frame))

    def say(self, text: str) -> None:
        self._attempt(lambda: self.display.say(text))

    def close(self) -> None:
        self._attempt(self.display.close)

    def _attempt(self, show: Callable[[], None]) -> None:
        if self._is_gone or not self._has_room():
            return
        try:
            show()
        except (OSError, ValueError):
            # The terminal hung up or the stream was closed. The run goes on unseen.
            self._is_gone = True

    def _has_room(self) -> bool:
        """Whether a write would be taken at once, as far as the system can tell.

        A terminal stopped with Ctrl-S or behind a stalled connection takes nothing; writing to it would stop the run.
        """
        try:
            return bool(select.select([], [self._stream], [], 0)[1])
        except (OSError, ValueError):
            # Not a file of the system, or a closed one: then writing says what is wrong with it.
            return True
