"""How the process ends: one exit code per kind of ending, and the error of our tree each one stands for."""

from __future__ import annotations

from enum import IntEnum

from mac_runner.errors import (
    ConfigError,
    EngineDeadError,
    MacRunnerError,
    RunDirectoryError,
    ShortageError,
    StoreError,
    UnusablePathError,
)


class Exit(IntEnum):
    """The exit codes of `mac-run`."""

    OK = 0
    FAILURES = 1
    BAD_INPUT = 2
    INTERRUPTED = 3
    STORAGE_FAILED = 4
    BUG = 70
    """An exception outside our tree, told with its traceback: EX_SOFTWARE of sysexits.h, unlike any ending of a run."""


def exit_of(error: MacRunnerError) -> Exit:
    """The exit code of an error that ended the run. A dead engine or a shortage leaves a run that can go on."""
    if isinstance(error, ConfigError | RunDirectoryError | UnusablePathError):
        return Exit.BAD_INPUT
    if isinstance(error, StoreError):
        return Exit.STORAGE_FAILED
    if isinstance(error, EngineDeadError | ShortageError):
        return Exit.INTERRUPTED
    return Exit.FAILURES
