"""The first program in each of vLLM's processes: sets up the process, then becomes what it was started as.

It runs in a session of its own, so that Ctrl-C at the terminal reaches mac-run alone, which lets requests in flight
finish. The kernel kills it when the process that started it is gone for any reason, so that no engine is left behind.
The processes that it starts itself begin here too, so its workers go with it.

Run as `python child.py STARTER PARENT PROGRAM ARGUMENT…`, by path: it imports nothing of mac_runner. STARTER is the
script that `multiprocessing` starts processes with, and runs this; PARENT is the id of the process that asked for it.

It holds a lock on the log of its engine to its end, so whoever gets that lock alone knows that no process of the engine
is left. The process also looks up its log here (`log_handler`), once vLLM sets up its loggers.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

LOG_VARIABLE = "MAC_RUNNER_VLLM_LOG"
"""The environment variable that names a process's log."""
PR_SET_PDEATHSIG = 1
OF_A_PROCESS = "--multiprocessing-fork"
"""Part of every command of `multiprocessing` but that of its tracker of shared memory. The tracker ends by itself after
the last process, and removes the shared memory of processes that were killed."""
COLLECTION_OBJECTS = 30_000
"""vLLM's imports leave no garbage behind, and a sixth of their time would go into looking for it."""


def become(starter: str, parent: int, command: list[str]) -> None:
    """Set up this process and turn into `command`, unless `parent` is gone by now."""
    os.setsid()
    if OF_A_PROCESS in command:
        command = handing_on(starter, command)
        with suppress(KeyError, OSError):  # Some file systems have no locks.
            log = os.open(os.environ[LOG_VARIABLE], os.O_RDONLY)
            os.set_inheritable(log, True)
            fcntl.flock(log, fcntl.LOCK_SH)
        if sys.platform == "linux":
            # The parent is the thread that starts the engine. A milder signal is not enough: a worker that waits inside
            # a collective never handles it, and an engine that is still loading continues to the end.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # It was gone before the kernel was asked.
                return
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def handing_on(starter: str, command: list[str]) -> list[str]:
    """`command`, changed to look seldom for garbage, and to start its own processes with `starter`."""
    at = command.index("-c") + 1
    rarely = f"import gc; gc.set_threshold({COLLECTION_OBJECTS})"
    program = f"{rarely}; from multiprocessing import set_executable; set_executable({starter!r}); {command[at]}"
    return [*command[:at], program, *command[at + 1 :]]


def log_handler() -> logging.Handler:
    """A handler that appends to the log of this process."""
    import logging  # Not needed to start a process.

    return logging.FileHandler(os.environ.get(LOG_VARIABLE, os.devnull))


if __name__ == "__main__":
    become(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
