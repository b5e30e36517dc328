"""Where the viewer listens, which requests it answers, and what every answer forbids the browser.

Imports no package, so flags are checked at once.

The server listens on the loopback interface, but other users of the machine and web pages in the user's own browser can
reach that too. So a request is answered only if all of these hold:

| check | against |
|---|---|
| the `Host` is one of ours | pages whose name was made to point here (DNS rebinding) |
| `Origin` and `Sec-Fetch-Site` are ours or absent | requests that another page makes |
| the cookie holds the token | other users of the machine |
| the method is GET or HEAD | anything that might change something |
| the target is a plain path of the routes | names of files: no part of a request becomes a path |

The token is in the address that is printed. The first request with it gets it as a cookie, which scripts cannot read
and which other sites do not send.
"""

from __future__ import annotations

import hmac
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine that only this machine can connect to."""
TOKEN: Final = "token"  # noqa: S105 - the name of a parameter

_BACKLOG: Final = 64
_HOST_AND_PORT: Final = re.compile(r"(?:[^:]*|\[.*):[0-9]+")
_METHODS: Final = frozenset({"GET", "HEAD"})
_SITES: Final = frozenset({"same-origin", "none"})
_CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": _CONTENT_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
        "Server": "mac_runner",
    }
)
"""Headers of every answer."""


class Asked(NamedTuple):
    """What the guard looks at of a request. `headers` have lower-case names and all their values."""

    method: str
    target: str
    headers: Mapping[str, Sequence[str]]
    cookies: Mapping[str, str]
    tokens: Sequence[str]
    """The values of the parameter `token`."""


class Refusal(NamedTuple):
    """Why a request is not answered."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of one server."""

    port: int
    token: str
    hosts: frozenset[str]
    """What `Host` may be, in lower case."""

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies do not know ports, so the port is in the name."""
        return f"mac_run_{self.port}"

    def refusal(self, asked: Asked) -> Refusal | None:
        """Why this request is not answered; None where it is."""
        for check in (self._foreign_host, self._foreign_site, self._odd, self._stranger):
            if (refusal := check(asked)) is not None:
                return refusal
        return None

    def is_greeting(self, asked: Asked) -> bool:
        """Whether the request brings the token in its address, to be given the cookie."""
        return asked.target.startswith("/?") and len(asked.tokens) == 1 and self._is_token(asked.tokens[0])

    def _foreign_host(self, asked: Asked) -> Refusal | None:
        hosts = asked.headers.get("host", ())
        if len(hosts) != 1:
            return Refusal(400, "a request names one Host")
        if hosts[0].lower() not in self.hosts:
            return Refusal(
                403,
                "this name of the server is not allowed; open the address that mac-run printed, "
                "or start it with --allow-host NAME:PORT",
            )
        return None

    def _foreign_site(self, asked: Asked) -> Refusal | None:
        hosts = asked.headers["host"]
        origins = asked.headers.get("origin", ())
        sites = asked.headers.get("sec-fetch-site", ())
        if any(origin.lower() != f"http://{hosts[0].lower()}" for origin in origins) or not _SITES.issuperset(sites):
            return Refusal(
                403, "another page asked for this; copy the address that mac-run printed into the address bar"
            )
        return None

    def _odd(self, asked: Asked) -> Refusal | None:
        if asked.method not in _METHODS:
            return Refusal(405, "the viewer only reads: use GET")
        if not asked.target.startswith("/") or asked.target.startswith("//"):
            return Refusal(400, "the target of a request is a path, such as /api/run")
        if "upgrade" in asked.headers or "http2-settings" in asked.headers:
            return Refusal(400, "the viewer has no other protocol than HTTP/1.1")
        if "content-length" in asked.headers and asked.headers["content-length"] != ["0"]:
            return Refusal(400, "a request has no body")
        if "transfer-encoding" in asked.headers:
            return Refusal(400, "a request has no body")
        return None

    def _stranger(self, asked: Asked) -> Refusal | None:
        if self._is_token(asked.cookies.get(self.cookie, "")) or self.is_greeting(asked):
            return None
        return Refusal(401, "open the address that mac-run printed: it has the token of this server")

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "surrogatepass"), self.token.encode())


def allowed_hosts(host: str, port: int, names: Collection[str]) -> frozenset[str]:
    """What `Host` may be: this machine by its loopback names, the address it listens on, and `names`.

    A name may have a port of its own, where a tunnel or a proxy has another one.
    """
    own = {*LOOPBACK, host} - {"0.0.0.0", "::"}  # noqa: S104 - left out
    ours = {f"{_bracketed(name)}:{port}" for name in own}
    return frozenset(
        ours | {name.lower() if _HOST_AND_PORT.fullmatch(name) else f"{_bracketed(name)}:{port}" for name in names}
    )


def _bracketed(name: str) -> str:
    """The name as written in an address: an IPv6 address in brackets."""
    return f"[{name}]".lower() if ":" in name and not name.startswith("[") else name.lower()


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
