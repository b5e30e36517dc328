"""Ports of 127.0.0.1 for engines."""

from __future__ import annotations

import os
import socket
from typing import Final, Protocol

from mac_runner.errors import ConfigError

FIRST: Final = 20_000
LAST: Final = 32_000
"""Below the ports that the system gives to outgoing connections, which could take a lane's port while it restarts."""
_STEP: Final = 61


class Ports(Protocol):
    """Which ports engines may listen on."""

    def is_free(self, port: int) -> bool:
        """Whether nothing listens on it."""
        ...

    def take(self, count: int) -> tuple[int, ...]:
        """So many different free ports. Raises ConfigError where there are not so many."""
        ...


class LoopbackPorts:
    """The ports of this machine."""

    def is_free(self, port: int) -> bool:
        """Whether an engine could listen on it now."""
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    def take(self, count: int) -> tuple[int, ...]:
        """So many free ports, from a place in the range that differs between processes."""
        width = LAST - FIRST
        start = os.getpid() * _STEP % width
        taken: list[int] = []
        for offset in range(width):
            if len(taken) == count:
                break
            if self.is_free(port := FIRST + (start + offset) % width):
                taken.append(port)
        if len(taken) < count:
            raise ConfigError(f"fleet: {count} engines need a port each, and {len(taken)} of {FIRST}-{LAST} are free")
        return tuple(taken)
