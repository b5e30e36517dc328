"""How a verb ends the process: with the exit code of its work, after printing what went wrong."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from mac_runner.cli.process import (
    INTERRUPTED,
    Exit,
    flush_stderr,
    interrupt_on_signals,
    leave_on_signals,
    say,
    told,
)
from mac_runner.errors import MacRunnerError, shortage_of
from mac_runner.runs.trust import trust


def end(work: Callable[[], Exit]) -> NoReturn:
    """Do the work of a verb and end the process with its exit code."""
    try:
        interrupt_on_signals()
        code = _outcome(work)
        flush_stderr()
        leave_on_signals(code)
    except KeyboardInterrupt:  # After the work, before its exit code is known.
        code = Exit.INTERRUPTED
    sys.exit(code)


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
    except Exception as fault:  # noqa: BLE001 - the end of the process: nothing goes on with it
        if (shortage := shortage_of(fault, "the run was stopped")) is not None:
            return told(shortage)
        say(traceback.format_exc())
        say("mac-run: this is a bug of mac_runner; what was recorded is safe, and the same command goes on from there")
        return Exit.BUG
