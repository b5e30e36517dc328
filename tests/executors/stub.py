"""A worker that ends as its arguments say: `python stub.py DIRECTORY BEHAVIOUR...`, one behaviour for each start.

A number is an exit code, `kill` a SIGKILL, `wait` ends with 3 at SIGTERM.
Starts of all workers on a directory are counted together; each leaves a file `start-N` with its process number.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path


def _first_free(directory: Path) -> tuple[int, int]:
    for number in count():
        with suppress(FileExistsError):
            return number, os.open(directory / f"start-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    raise AssertionError


def main(directory: str, *behaviours: str) -> None:
    """Count this start, and end."""
    number, descriptor = _first_free(Path(directory))
    behaviour = behaviours[min(number, len(behaviours) - 1)]
    if behaviour == "wait":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    os.write(descriptor, str(os.getpid()).encode())
    sys.stderr.write(f"start {number}: {behaviour}\n")
    sys.stderr.flush()
    if behaviour == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour != "wait":
        sys.exit(int(behaviour))
    while True:
        time.sleep(1)  # A signal that comes just before it is heard of afterwards.


if __name__ == "__main__":
    main(*sys.argv[1:])
