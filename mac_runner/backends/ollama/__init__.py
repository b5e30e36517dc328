"""The backend `ollama`: models served by Ollama."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.ollama.settings import OllamaConfig, check_agents
from mac_runner.clock import Clock
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec

__all__ = ["SPEC", "OllamaConfig"]


def _build(request: BackendRequest[OllamaConfig]) -> Backend:
    from mac_runner.backends.ollama.backend import OllamaBackend

    request.refuse(Unsupported(tokens=True))
    check_agents(request.name, request.agents)
    return OllamaBackend(
        name=request.name,
        config=request.settings,
        settings=request.used_settings,
        is_pulling=request.can_pull,
        clock=request.clock,
        say=request.say,
        has_thinkers=True in request.thinking or "reasoning_effort" in request.used_settings,
    )


def _variants(settings: OllamaConfig) -> Iterator[tuple[str, OllamaConfig]]:
    for url in settings.host:
        yield f"ollama, {settings.model} at {url}", settings.model_copy(update={"host": (url,)})


async def _local(clock: Clock) -> str:
    from mac_runner.backends.ollama.backend import described

    return await described(OllamaConfig.model_fields["host"].default[0], clock)


SPEC = BackendSpec(
    settings=OllamaConfig,
    build=_build,
    variants=_variants,
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("aiohttp", "ollama", "httpx"),
    holds_memory=True,
    can_pull=True,
    connections=lambda settings: settings.max_in_flight,
    local=_local,
)
