"""The first program in each of vLLM's processes: sets up the process, then becomes what it was started as.

It runs in a session of its own, so that an interrupt typed at the terminal reaches mac-run alone, which lets requests
in flight finish. The kernel kills it when whoever started it is gone, however that went, so that no engine is left
behind; and what it starts itself begins here too, so that its workers go with it.

Run as `python child.py STARTER PARENT PROGRAM ARGUMENT…`, by path: it imports nothing of mac_runner. STARTER is what
`multiprocessing` starts processes with, and runs this; PARENT is the id of the process that asked for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
OF_A_PROCESS = "--multiprocessing-fork"
"""In the command of all that `multiprocessing` starts but its tracker of shared memory. The tracker ends by itself
after the last process, and removes from memory what processes that were killed have left there."""


def become(starter: str, parent: int, command: list[str]) -> None:
    """Set up this process and turn into `command`, unless `parent` is gone by now."""
    os.setsid()
    if OF_A_PROCESS in command:
        command = handing_on(starter, command)
        if sys.platform == "linux":
            # The parent is the thread that starts the engine. No milder signal will do: a worker that waits for another
            # inside a collective never gets to handle it, and an engine that is still loading goes on to the end.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # It was gone before the kernel was asked.
                return
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def handing_on(starter: str, command: list[str]) -> list[str]:
    """`command`, made to start its own processes with `starter`; by itself it would take the plain interpreter."""
    at = command.index("-c") + 1
    program = f"from multiprocessing import set_executable; set_executable({starter!r}); {command[at]}"
    return [*command[:at], program, *command[at + 1 :]]


if __name__ == "__main__":
    become(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
