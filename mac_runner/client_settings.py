"""The variables with which an environment sets up the clients of servers, which do not apply here.

Clients read where a server is, which proxies lead there and which certificates are trusted. One does so when it is
imported, for a client that is never used, and raises for a value that it does not understand. An experiment says itself
where its servers are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_VARIABLES: Final = re.compile(r"(?i:\w+_proxy)|SSL_CERT_(?:FILE|DIR)|SSLKEYLOGFILE|OLLAMA_\w+|ANTHROPIC_\w+")

KEY_LOG: Final = re.compile("SSLKEYLOGFILE")
"""A file for the keys of connections, for other programs. Where it cannot be written, aiohttp cannot be imported; the
certificates that it is to trust stay (`SSL_CERT_FILE`)."""


@contextmanager
def no_client_settings(variables: re.Pattern[str] = _VARIABLES) -> Iterator[None]:
    """Without these variables in the block, which must not wait for anything: it hides them from all threads."""
    hidden = {name: os.environ.pop(name) for name in [*os.environ] if variables.fullmatch(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)
