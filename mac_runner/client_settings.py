"""The variables with which an environment sets up the clients of servers, which do not apply here.

Clients read where a server is, which proxies lead there and which certificates are trusted. Two do so when they are
imported, for clients and contexts that are never used, and raise for a value that they do not understand. An experiment
says itself where its servers are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

KEY_LOG: Final = re.compile("SSLKEYLOGFILE")
"""The file that gets the keys of connections. Python opens it with each set of certificates, or raises."""
_VARIABLES: Final = re.compile(rf"(?i:\w+_proxy)|SSL_CERT_(?:FILE|DIR)|{KEY_LOG.pattern}|OLLAMA_\w+|ANTHROPIC_\w+")


@contextmanager
def no_client_settings(variables: re.Pattern[str] = _VARIABLES) -> Iterator[None]:
    """Without these variables in the block, which must not wait for anything: it hides them from all threads."""
    hidden = {name: os.environ.pop(name) for name in [*os.environ] if variables.fullmatch(name)}
    try:
        yield
    finally:
        os.environ.update(hidden)
