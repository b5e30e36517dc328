"""The backend `anthropic`: Claude models over the Messages API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

from mac_runner.backends.anthropic.settings import AnthropicConfig, check_agents
from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.redaction import required_key
from mac_runner.registry import BackendSpec

__all__ = ["SPEC", "AnthropicConfig"]

_NO_SETTINGS = frozenset({"min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"})


def _build(request: BackendRequest[AnthropicConfig]) -> Backend:
    from mac_runner.backends.dialects.anthropic import AnthropicDialect
    from mac_runner.backends.http.backend import HttpBackend

    if find_spec("anthropic") is None:  # It is imported for the first schema.
        raise ModuleNotFoundError(name="anthropic")
    config = request.settings
    request.refuse(Unsupported(settings=_NO_SETTINGS, tokens=True))
    check_agents(request.name, config, request.agents)
    key_path = ("model_definitions", request.name, "anthropic_config", "api_key_env")
    return HttpBackend(
        request.name,
        AnthropicDialect(config),
        key=required_key(config.api_key_env, os.environ, path=key_path),
        clock=request.clock,
        say=request.say,
    )


def _variants(settings: AnthropicConfig) -> Iterator[tuple[str, AnthropicConfig]]:
    for url in settings.base_url:
        yield f"anthropic, {settings.model} at {url}", settings.model_copy(update={"base_url": (url,)})


SPEC = BackendSpec(
    settings=AnthropicConfig,
    build=_build,
    variants=_variants,
    constrains=lambda _settings: frozenset({"schema"}),
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("aiohttp", "anthropic"),
    connections=lambda settings: settings.max_in_flight,
)
