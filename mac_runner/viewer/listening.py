"""Where a server listens, and the address of its pages. Imports no package, so flags are checked at once."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError
from mac_runner.viewer.guard import LOOPBACK, TOKEN

_BACKLOG: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen. Port 0 is any that is free."""

    host: str = "127.0.0.1"
    port: int = 0
    names: tuple[str, ...] = ()
    """By what other names the server may be called."""

    def check(self) -> None:
        """Raises ConfigError where other machines can connect and no name says how they call this one."""
        if self.host not in LOOPBACK and not self.names:
            raise ConfigError(
                f"--host {self.host} lets other machines connect: add --allow-host NAME, the name or address that "
                "they open, or leave --host out and use ssh -L"
            )


class Opening(NamedTuple):
    """A socket that listens, the token of its server, and other names by which the server may be called."""

    socket: socket.socket
    token: str
    names: tuple[str, ...] = ()

    @classmethod
    def inherited(cls, descriptor: int, token: str) -> Opening:
        """With a socket that another process opened."""
        return cls(socket.socket(fileno=descriptor), token)


def url_of(listening: socket.socket, token: str) -> str:
    """The address that opens the pages of a server."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/?{TOKEN}={token}"


def listening_at(address: Address) -> socket.socket:
    """A socket that listens. Raises ConfigError where the address cannot be had."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(_BACKLOG)
    except OSError as fault:
        listening.close()
        raise ConfigError(
            f"cannot listen on {address.host} port {address.port}: {fault.strerror or fault}; "
            "leave --port out for one that is free"
        ) from fault
    return listening
