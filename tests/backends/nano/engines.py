"""Engines of nano in this process, and runs on them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from mac_runner.backends.nano import NanoBackend, NanoConfig
from mac_runner.clock import SystemClock
from mac_runner.spec import AgentDefinition
from mac_runner.types import JsonObject, JsonValue
from tests.sim.building import request_for

SMALL: Final[JsonObject] = {"num_threads": 1, "kv_cache_gib": 0.02}


def nano(
    model: Path,
    settings: Mapping[str, JsonValue] = MappingProxyType({}),
    *,
    traces: bool = False,
    told: list[str] | None = None,
    thinker: str = "",
) -> NanoBackend:
    """A backend with these settings, not started; `thinker` is an agent that thinks."""
    config = NanoConfig.model_validate({"model": str(model), **SMALL, **settings})
    say = ([] if told is None else told).append
    agents = [AgentDefinition(agent_id=thinker, role="player", model="m", thinking=True)] if thinker else []
    return NanoBackend(request_for(config, SystemClock(), record_tokens=traces, agents=agents, say=say))


@asynccontextmanager
async def started(backend: NanoBackend) -> AsyncIterator[NanoBackend]:
    """It is closed whatever happens."""
    try:
        await backend.start()
        yield backend
    finally:
        await backend.close()


def model_of(model: Path, **more: JsonValue) -> JsonObject:
    """A definition of it in an experiment."""
    return {"backend": "nano", "nano_config": {"model": str(model), **SMALL, **more}}
