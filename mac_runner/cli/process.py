"""The process: its entry point, its exit codes, its streams, its signals and its end.

It is imported before everything else and is small, so that a signal finds its handler from the first moment, and a
process without memory can still say so.

Reports go to stdout, all other words to stderr. Neither changes how a command ends: a reader that has gone
(`mac-run … | head -1`) and a stream closed from the start are not errors. Words on stderr may be lost; a report
that cannot be stored, such as one on a stream that a user's code has closed, is an error like any failed write. A
character that the encoding of a stream lacks is written as `printable.spelt_out` says, except by `write_exactly`.

SIGHUP is ignored: a run goes on when the terminal it was started from is gone. Leaving at once is safe at any moment,
since what was acknowledged is on the disk and nothing else was promised. There is a handler from the entry point to
the end of the process, and Python's own never come back, so no signal ends the process in another way:

| phase | SIGINT or SIGTERM |
|---|---|
| imports, flags | leaves at once with INTERRUPTED |
| a verb at work, nothing in flight | raises KeyboardInterrupt; a second one leaves at once |
| the same, in a callback of the interpreter, which ignores what is raised there | leaves at once |
| requests in flight | asks the run to stop; a second one leaves at once |
| the exit code is known | leaves at once with that code |
| the interpreter shuts down | is ignored |
"""

from __future__ import annotations

import _thread
import atexit
import codecs
import errno
import gc
import io
import mmap
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

from mac_runner.errors import (
    AlikeFailuresError,
    ConfigError,
    EngineDeadError,
    MacRunnerError,
    RunDirectoryError,
    RunLockedError,
    ShortageError,
    StoreError,
    UnusablePathError,
    lacks_memory,
    may_be_a_signal,
    shortage_of,
)
from mac_runner.printable import some_of, spelt_out
from mac_runner.steps import WAKING, StepLimit, place_of_thread

if TYPE_CHECKING:
    import asyncio

INTERRUPTED: Final = "mac-run: interrupted; run the same command again"
STOPPING: Final = "stopping: waiting for the requests in flight; once more leaves at once"
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)
_SPELT_OUT: Final = "mac_runner.spelt_out"
_RESERVE_BYTES: Final = 4 << 20
_PROBE_BYTES: Final = 4 * _RESERVE_BYTES
_IMPORTS_BYTES: Final = 48 << 20
"""Less than the imports of a command take: about 56 MiB of addresses, measured with CPython 3.11."""
LEAVING_S: Final = 5.0
"""How long the interpreter's own end may take. It waits for threads, child processes and exit functions of a user's
code, however long."""
_NAMED_MAX: Final = 3
"""As many of the threads that are left are named."""
_reserve: Final[list[mmap.mmap]] = []
_reports: Final[list[TextIO]] = []
# The signals that interrupted the verb at work. The interrupt may be lost where it was raised: code of others may pass
# over every exception.
_interrupts: Final[list[int]] = []
_ended_with: Final[list[int]] = []


class Exit(IntEnum):
    """The exit codes of `mac-run`."""

    OK = 0
    FAILURES = 1
    BAD_INPUT = 2
    INTERRUPTED = 3
    STORAGE_FAILED = 4
    IN_USE = 5
    """Another process is at work in the directory: take another directory, or try later."""
    BUG = 70
    """An exception outside our tree, printed with its traceback: EX_SOFTWARE of sysexits.h."""


def main(load: Callable[[], Callable[[], int]]) -> None:
    """Play a command from its first moment to its end; `load` imports it, and what it gives returns the exit code."""
    take_over_signals()
    try:
        ready_streams()
        keep_reserve()
        # An extension module that finds no memory while it is imported ends the process by a signal.
        mmap.mmap(-1, _IMPORTS_BYTES).close()
        with without_collections():
            obey = load()
        code = obey()
    except Exception as fault:
        error = fault if isinstance(fault, MacRunnerError) else shortage_behind(fault, "the command could not start")
        if error is not None:
            sys.exit(told(error))
        raise
    flush_stderr()
    sys.exit(code)


@contextmanager
def without_collections() -> Iterator[None]:
    """For imports: they leave no garbage behind, and a tenth of their time would go into looking for it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def exit_of(error: MacRunnerError) -> Exit:
    """The exit code of an error that ended the command.

    A run can go on after a dead engine, a shortage, or failures that stopped it.
    """
    if isinstance(error, RunLockedError):
        return Exit.IN_USE
    if isinstance(error, ConfigError | RunDirectoryError | UnusablePathError):
        return Exit.BAD_INPUT
    if isinstance(error, StoreError):
        return Exit.STORAGE_FAILED
    if isinstance(error, EngineDeadError | ShortageError | AlikeFailuresError):
        return Exit.INTERRUPTED
    return Exit.FAILURES


def ready_streams() -> None:
    """Make sure that stdin, stdout and stderr are open, and that the latter two take every character.

    Otherwise the next file opened would get the number of a closed one, and everything printed to it by others.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest number that is free, which is this one.
    codecs.register_error(_SPELT_OUT, spelt_out)
    sys.stdout, sys.stderr = _ready(sys.stdout, 1), _ready(sys.stderr, 2)


def _ready(stream: TextIO | None, descriptor: int) -> TextIO:
    """The stream, or a new one where Python has none."""
    if stream is None:
        return open(descriptor, "w", encoding="utf-8", errors=_SPELT_OUT, closefd=False)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors=_SPELT_OUT)
    return stream


def keep_reserve() -> None:
    """Keep address space with which a process without memory can say so. It takes no memory as long as it is kept."""
    _reserve.append(mmap.mmap(-1, _RESERVE_BYTES))


def shortage_behind(fault: BaseException, what: str) -> ShortageError | None:
    """The shortage that ends the process; None if there is none. `what` is what it prevented."""
    _give_up_reserve()
    if isinstance(fault, SystemError):
        # The interpreter raises it where it has no memory for a MemoryError either.
        try:
            mmap.mmap(-1, _PROBE_BYTES).close()
        except OSError:
            return shortage_of(MemoryError(), what)
    return shortage_of(fault, what)


def _give_up_reserve() -> None:
    while _reserve:
        _reserve.pop().close()


@contextmanager
def report() -> Iterator[TextIO]:
    """Stdout, flushed at the end of the block. Raises StoreError when what was printed could not be stored.

    Inside of another report it is the same stream, whatever code of others has put in the place of `sys.stdout` since.
    """
    stream = _reports[-1] if _reports else sys.stdout
    _reports.append(stream)
    try:
        if stream.closed:
            raise OSError(errno.EBADF, "stdout was closed")
        yield stream
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as fault:
        _discard(stream)
        raise StoreError(f"cannot print the report: {fault.strerror}; run the same command again to see it") from fault
    finally:
        _reports.pop()


def print_lines(*lines: str) -> None:
    """Print a report of these lines."""
    with report() as stream:
        stream.writelines(f"{line}\n" for line in lines)


def write_exactly(text: str, stream: TextIO) -> None:
    """Print a text as UTF-8, whatever the encoding of the stream. A lone surrogate becomes its three bytes."""
    stream.flush()
    stream.buffer.write(text.encode("utf-8", "surrogatepass"))


def say(text: str) -> None:
    """Print a line on stderr; lost if it cannot be written."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:  # Else `print` would take stdout.
            print(text, file=sys.stderr, flush=True)  # noqa: T201 - the only place that prints


def told(error: MacRunnerError) -> Exit:
    """Print the error that ended the command; its exit code.

    Without memory it leaves at once: the interpreter's own end takes some, and complains of each piece it does not get.
    """
    _give_up_reserve()
    say(f"mac-run: {error}")
    code = exit_of(error)
    if lacks_memory(error):
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
    return code


def flush_stderr() -> None:
    """Flush stderr, so that the interpreter does not fail to do so at its exit, with an exit code of its own."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    except ValueError:
        pass  # It was closed.


def _discard(stream: TextIO) -> None:
    """Discard what is buffered, or the interpreter would try to print it again at its exit."""
    if stream.closed:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def take_over_signals() -> None:
    """Handle every signal from here to the end of the process. Called before anything else."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leave_on_signals(words=INTERRUPTED)
    sys.unraisablehook = _hear_ignored
    # What is registered first is called last. After that Python restores its own handlers, except for ignored signals,
    # and still has work to do.
    atexit.register(_ignore_signals)


def leave_on_signals(code: int = Exit.INTERRUPTED, *, words: str = "") -> None:
    """From here on SIGINT and SIGTERM end the process at once with `code`, after printing `words` on stderr."""

    for number in _STOPPING:
        signal.signal(number, lambda _number, _frame: leave(code, words))


def leave(code: int, words: str) -> NoReturn:
    """End the process at once."""
    with suppress(OSError):
        os.write(2, f"{words}\n".encode() if words else b"")
    os._exit(code)


def _hear_ignored(what: sys.UnraisableHookArgs) -> None:
    """Leave at once where the interpreter ignores an interrupt: one came in a callback, as that of an import's lock.

    Not for one that is no signal's: a finalizer of anyone's may raise it.
    """
    if issubclass(what.exc_type, KeyboardInterrupt) and may_be_a_signal(what.exc_traceback):
        leave(Exit.INTERRUPTED, INTERRUPTED)
    sys.__unraisablehook__(what)


def interrupt_on_signals() -> None:
    """From here on the first SIGINT or SIGTERM raises KeyboardInterrupt, and the second one leaves at once."""
    _interrupts.clear()

    def interrupt(number: int, _frame: FrameType | None) -> None:
        _interrupts.append(number)
        leave_on_signals()
        raise KeyboardInterrupt

    for number in _STOPPING:
        signal.signal(number, interrupt)


@contextmanager
def stop_on_signals(stop: asyncio.Event, say: Callable[[str], None], *, words: str = STOPPING) -> Iterator[None]:
    """Inside the block the first signal sets `stop` and says so; the second ends the process, after the block too.

    An interrupt that was lost before the block counts as the first.

    These are the interpreter's handlers and not the loop's, so the second signal works even while the loop is blocked.
    """
    from asyncio import get_running_loop  # Here, because importing it would delay the entry point.

    loop = get_running_loop()
    handlers = {number: signal.getsignal(number) for number in _STOPPING}
    received = [*_interrupts]

    def ask_to_stop() -> None:
        stop.set()
        say(words)

    def on_signal(number: int, _frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(Exit.INTERRUPTED)
        loop.call_soon_threadsafe(ask_to_stop)

    for number in _STOPPING:
        signal.signal(number, on_signal)
    if received:
        ask_to_stop()
    try:
        yield
    finally:
        if received:
            leave_on_signals()
        else:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in _STOPPING:
        signal.signal(number, signal.SIG_IGN)


def end(work: Callable[[], Exit | None], trusted: Iterable[Path] = ()) -> NoReturn:
    """Do the work of a verb and end the process with its exit code. The code of trusted run directories is imported."""
    try:
        interrupt_on_signals()
        signal.signal(WAKING, lambda _number, _frame: None)
        StepLimit.endless = staticmethod(_leave_endless)
        with suppress(OSError):  # It may have been removed.
            StepLimit.home = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        code = _outcome(work, trusted)
        if StepLimit.home is not None:
            os.close(StepLimit.home)
            StepLimit.home = None
        flush_stderr()
        leave_on_signals(code)
        _end_in_time(code)
    except KeyboardInterrupt:  # After the work, before its exit code is known.
        code = Exit.INTERRUPTED
    sys.exit(code)


def _end_in_time(code: int) -> None:
    """From here on the interpreter has LEAVING_S for its own end."""
    if not _ended_with:
        threading._register_atexit(_leave_later)  # type: ignore[attr-defined]
    _ended_with[:] = [code]


def _leave_later() -> None:
    if _ended_with:
        with suppress(RuntimeError):  # There is no room for a further thread.
            _thread.start_new_thread(_leave_late, (_ended_with[0],))


def _leave_late(code: int) -> None:
    threading.Event().wait(LEAVING_S)
    held = [each for each in threading.enumerate() if not each.daemon and each is not threading.main_thread()]
    names = [f"thread {each.name!r} {place_of_thread(each.ident or 0)}".rstrip() for each in held]
    if not held:
        place = place_of_thread(threading.main_thread().ident or 0)
        names = [f"what was registered for the end of the process {place}".rstrip()]
    leave(code, f"mac-run: leaves without waiting for {some_of(names, _NAMED_MAX)}")


def _leave_endless(where: str) -> None:
    """Leave when a step of a user's code neither ends nor can be broken off: its thread is that of the run."""
    text = f"mac-run: {where}: a step does not end, and cannot be broken off; what was recorded is safe"
    leave(Exit.INTERRUPTED, f"{text}: mend that line, or the same command will wait there again")


def _outcome(work: Callable[[], Exit | None], trusted: Iterable[Path]) -> Exit:
    """The exit code of the work. Prints our own errors as a line, and a bug with its traceback."""
    try:
        if trusted:
            # Here, because it is imported by verbs that read a run alone.
            from mac_runner.runs.recorded import trust

            trust(trusted)
        return work() or Exit.OK
    except MacRunnerError as error:
        return told(error)
    except KeyboardInterrupt:
        say(INTERRUPTED)
        return Exit.INTERRUPTED
    except BaseException as fault:  # noqa: BLE001 - the end of the process: nothing goes on with it
        if (shortage := shortage_behind(fault, "the run was stopped")) is not None:
            return told(shortage)
        say(traceback.format_exc())
        say("mac-run: this is a bug of mac_runner; what was recorded is safe, and the same command goes on from there")
        return Exit.BUG
