"""What is there at an address, before anything is asked of it."""

from __future__ import annotations

import asyncio
import os
from typing import NamedTuple

from mac_runner.backends.keys import blotted, key_in, unspoken
from mac_runner.backends.ollama.verdicts import verdicts
from mac_runner.backends.ollama.wire import KEY_VARIABLE, Wire, client_of, version_of
from mac_runner.clock import Clock
from mac_runner.errors import TransientBackendError
from mac_runner.limits import OLLAMA_ANSWER_S_MAX


class Survey(NamedTuple):
    """An Ollama server and the models it has."""

    version: str
    models: tuple[str, ...]


async def survey(host: str, clock: Clock) -> Survey:
    """Ask the server at `host` for its version and its models. Raises a BackendError or ConfigError."""
    key = key_in(os.environ, KEY_VARIABLE)
    with unspoken(key):
        found = await _survey(Wire(host, key=key, clock=clock))
    return Survey(blotted(found.version, key), tuple(blotted(model, key) for model in found.models))


async def _survey(wire: Wire) -> Survey:
    try:
        async with asyncio.timeout(OLLAMA_ANSWER_S_MAX):
            version = await version_of(wire)
            with verdicts(wire.host):
                listed = await client_of(wire).list()
    except TimeoutError:
        text = f"Ollama at {wire.host} did not answer within {OLLAMA_ANSWER_S_MAX:.0f} s"
        raise TransientBackendError(text, is_unreachable=True) from None
    finally:
        await wire.aclose()
    return Survey(version, tuple(sorted(entry.model for entry in listed.models if entry.model)))
