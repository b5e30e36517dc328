"""How many connections this process may hold: each is a file descriptor, of which a process has a bounded number."""

from __future__ import annotations

import resource
import socket
from typing import Any

from mac_runner.nano.server.limits import DESCRIPTORS_KEPT, DESCRIPTORS_LAST


def descriptor_limit() -> int | None:
    """How many descriptors this process may have; None for no bound. Whoever owns the process may raise it before."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_within(wanted: int, limit: int | None) -> int:
    """So many connections, or what `limit` descriptors leave when files and pipes have theirs; at least one."""
    return wanted if limit is None else max(min(wanted, limit - DESCRIPTORS_KEPT), 1)


class Listener(socket.socket):
    """A socket that hangs up on who would take one of the last descriptors.

    Were there none left, this process could open nothing, and asyncio would log thousands of lines a second.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        """Let somebody in. Raises ConnectionAbortedError when there is no room."""
        connection, address = super().accept()
        limit = descriptor_limit()
        # The number of a descriptor is the lowest that is free.
        if limit is not None and connection.fileno() >= limit - DESCRIPTORS_LAST:
            connection.close()
            raise ConnectionAbortedError(f"{limit} file descriptors leave no room for more connections")
        return connection, address
