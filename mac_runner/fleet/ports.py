"""Ports of 127.0.0.1 for engines.

An engine listens seconds or minutes after its port was chosen. Until then, and while it starts again, the port is kept
from other fleets by a UDP socket of the same number, on which nothing is ever sent.
"""

from __future__ import annotations

import os
import socket
import weakref
from contextlib import ExitStack
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
    """The ports of this machine. Those that it took are its own for as long as it is there."""

    def __init__(self) -> None:
        self._kept = ExitStack()
        weakref.finalize(self, self._kept.close)

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
            if self.is_free(port := FIRST + (start + offset) % width) and self._keep(port):
                taken.append(port)
        if len(taken) < count:
            raise ConfigError(f"fleet: {count} engines need a port each, and {len(taken)} of {FIRST}-{LAST} are free")
        return tuple(taken)

    def _keep(self, port: int) -> bool:
        """Keep a port from others, unless one of them has it."""
        kept = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            kept.bind(("127.0.0.1", port))
        except OSError:
            kept.close()
            return False
        self._kept.enter_context(kept)
        return True
