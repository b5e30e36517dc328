"""The program of a worker that its leader has started, as a process of its own.

    python -m mac_runner.nano.parallel.process KIND NUMBER SOCKET_FD PARENT_PID

Signals that ask to end are left to the leader, which may have requests to finish.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from functools import partial
from multiprocessing.connection import Connection
from threading import Thread

from mac_runner.nano.parallel.ranks import Rank
from mac_runner.nano.parallel.replica import Replica
from mac_runner.nano.parallel.worker import leave, serve
from mac_runner.nano.parallel.workers import LOOK_S

_KINDS = {"rank": Rank, "replica": Replica}


def main() -> None:
    """Serve the leader, which keeps this process's standard input open while it lives."""
    kind, *numbers = sys.argv[1:]
    number, fd, parent = map(int, numbers)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)

    def watch() -> None:
        while not select.select([0], [], [], LOOK_S)[0] and os.getppid() == parent:
            pass
        leave()

    Thread(target=watch, name="nano-leader-watch", daemon=True).start()
    leave(is_well=serve(Connection(fd), partial(_KINDS[kind], number)))


if __name__ == "__main__":
    main()
