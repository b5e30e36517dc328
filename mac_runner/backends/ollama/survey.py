"""What is there at an address, before anything is asked of it."""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from mac_runner.backends.keys import key_in
from mac_runner.backends.ollama.verdicts import verdicts
from mac_runner.backends.ollama.wire import KEY_VARIABLE, VERSION_CHARS_MAX, Wire, client_of, version_of
from mac_runner.backends.redaction import Redactor, redacting
from mac_runner.clock import Clock
from mac_runner.errors import BackendError, ConfigError, TransientBackendError
from mac_runner.limits import OLLAMA_ANSWER_S_MAX
from mac_runner.printable import printable


class Survey(NamedTuple):
    """An Ollama server and the models it has."""

    version: str
    models: tuple[str, ...]


async def described(host: str, clock: Clock) -> str:
    """The server at `host` on one line, or why it cannot be described."""
    try:
        found = await survey(host, clock)
    except (BackendError, ConfigError) as error:
        return str(error)
    models = ", ".join(map(printable, found.models)) or "none"
    return f"{printable(found.version)} at {host}; models: {models}"


async def survey(host: str, clock: Clock) -> Survey:
    """Ask the server at `host` for its version and its models. Raises a BackendError or ConfigError."""
    key = key_in(os.environ, KEY_VARIABLE)
    redactor = Redactor(key)
    with redacting(redactor):
        found = await _survey(Wire(host, key=key, redactor=redactor, clock=clock))
    return Survey(redactor.quoted(found.version, VERSION_CHARS_MAX), tuple(map(redactor.quoted, found.models)))


async def _survey(wire: Wire) -> Survey:
    try:
        async with asyncio.timeout(OLLAMA_ANSWER_S_MAX):
            version = await version_of(wire)
            with verdicts(wire.host, wire.redactor):
                listed = await client_of(wire).list()
    except TimeoutError:
        text = f"Ollama at {wire.host} did not answer within {OLLAMA_ANSWER_S_MAX:.0f} s"
        raise TransientBackendError(text, is_unreachable=True) from None
    finally:
        await wire.aclose()
    return Survey(version, tuple(sorted(entry.model for entry in listed.models if entry.model)))
