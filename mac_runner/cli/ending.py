"""How a verb ends the process: with the exit code of its work, after printing what went wrong."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from mac_runner.cli.process import (
    INTERRUPTED,
    Exit,
    flush_stderr,
    interrupt_on_signals,
    leave,
    leave_on_signals,
    say,
    shortage_behind,
    told,
    working_directory,
)
from mac_runner.errors import MacRunnerError
from mac_runner.runs.recorded import trust
from mac_runner.steps import WAKING, StepLimit, place_of_thread

LEAVING_S: Final = 5.0
"""How long the interpreter's own end may take. It waits for threads, child processes and exit functions of a user's
code, however long."""
_NAMED_MAX: Final = 3
"""As many of the threads that are left are named."""
_ended_with: Final[list[int]] = []


def end(work: Callable[[], Exit]) -> NoReturn:
    """Do the work of a verb and end the process with its exit code."""
    try:
        interrupt_on_signals()
        signal.signal(WAKING, lambda _number, _frame: None)
        StepLimit.endless = staticmethod(_leave_endless)
        with working_directory() as StepLimit.home:
            code = _outcome(work)
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
    names = [f"thread {each.name!r} {place_of_thread(each.ident or 0)}".rstrip() for each in held[:_NAMED_MAX]]
    if not held:
        place = place_of_thread(threading.main_thread().ident or 0)
        names = [f"what was registered for the end of the process {place}".rstrip()]
    more = f" and {len(held) - _NAMED_MAX} more" if len(held) > _NAMED_MAX else ""
    leave(code, f"mac-run: leaves without waiting for {', '.join(names)}{more}")


def _leave_endless(where: str) -> None:
    """Leave when a step of a user's code neither ends nor can be broken off: its thread is that of the run."""
    text = f"mac-run: {where}: a step does not end, and cannot be broken off; what was recorded is safe"
    leave(Exit.INTERRUPTED, f"{text}: mend that line, or the same command will wait there again")


def end_trusted(directories: Iterable[Path], is_trusted: bool, work: Callable[[], Exit]) -> NoReturn:
    """Do the work of a verb that reads run directories, after importing their code if it is trusted."""

    def trusted() -> Exit:
        if is_trusted:
            trust(directories)
        return work()

    end(trusted)


def _outcome(work: Callable[[], Exit]) -> Exit:
    """The exit code of the work. Prints our own errors as a line, and a bug with its traceback."""
    try:
        return work()
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
