"""The first program in each of vLLM's processes: sets up the process, then becomes what it was started as.

It runs in a session of its own, so that an interrupt typed at the terminal reaches mac-run alone, which lets requests
in flight finish; and the kernel tells it when mac-run is gone, however it went, so that no engine is left behind.

Run as `python child.py PROGRAM ARGUMENT…`, by path: it imports nothing of mac_runner.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def become(command: list[str]) -> None:
    """Set up this process and turn into `command`. Does not return."""
    os.setsid()
    if sys.platform == "linux":
        # The parent is the thread that starts the engine. vLLM ends in good order on this signal.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    become(sys.argv[1:])
