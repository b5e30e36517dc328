"""The backend `anthropic`: Claude models over the Messages API, through its official client."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mac_runner.backends.anthropic.settings import AnthropicConfig, check_agents
from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.redaction import required_key
from mac_runner.registry import BackendSpec

__all__ = ["SPEC", "AnthropicConfig"]

_NO_SETTINGS = frozenset({"min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"})


def _build(request: BackendRequest[AnthropicConfig]) -> Backend:
    from mac_runner.backends.anthropic.backend import AnthropicBackend

    request.refuse(Unsupported(settings=_NO_SETTINGS, tokens=True))
    check_agents(request.name, request.settings, request.agents)
    key_path = ("model_definitions", request.name, "anthropic_config", "api_key_env")
    return AnthropicBackend(
        request.name,
        request.settings,
        key=required_key(request.settings.api_key_env, os.environ, path=key_path),
        clock=request.clock,
    )


def _variants(settings: AnthropicConfig) -> Iterator[tuple[str, AnthropicConfig]]:
    yield f"anthropic, {settings.model} at {settings.base_url}", settings


SPEC = BackendSpec(
    settings=AnthropicConfig,
    build=_build,
    variants=_variants,
    constrains=lambda _settings: frozenset({"schema"}),
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("anthropic",),
    connections=lambda settings: settings.max_in_flight,
)
