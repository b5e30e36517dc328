"""The backend `anthropic`: Claude models over the Messages API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.http.settings import AnthropicConfig
from mac_runner.backends.redaction import required_key
from mac_runner.registry import BackendSpec
from mac_runner.spec import serving_at

if TYPE_CHECKING:
    from mac_runner.spec import AgentDefinition

__all__ = ["SPEC", "AnthropicConfig"]


THINKING_TOP_P_MIN: Final = 0.95
"""The API takes no smaller top_p beside a thought."""

DRAWING_VERSION: Final = "2023-06-01"
"""The last version of the API in which a request says how tokens are drawn."""


def _objections(config: AnthropicConfig, agent: AgentDefinition) -> Iterator[tuple[str, str]]:
    """The settings of an agent that the API refuses, each with what it takes instead."""
    drawing = {
        "temperature": agent.temperature != 1,
        "top_p": agent.top_p is not None,
        "top_k": agent.top_k is not None,
    }
    for setting in (name for name, is_set in drawing.items() if is_set and config.api_version != DRAWING_VERSION):
        text = f"Anthropic's API takes none since version {config.api_version}; leave it out, or set "
        yield setting, f"{text}anthropic_config.api_version: {DRAWING_VERSION} for a model that takes it"
    if agent.temperature > 1:
        yield "temperature", f"found {agent.temperature}; Anthropic's API takes 0 to 1"
    if any(not text.strip() for text in agent.stop):
        yield "stop", "Anthropic's API takes no text of blanks alone; leave it out"
    if agent.thinking is not True:
        return
    if agent.temperature != 1:
        yield "temperature", f"found {agent.temperature}; beside `thinking: true` Anthropic's API takes 1 alone"
    if agent.top_k is not None:
        yield "top_k", "beside `thinking: true` Anthropic's API takes none; leave it out"
    if agent.top_p is not None and agent.top_p < THINKING_TOP_P_MIN:
        yield "top_p", f"found {agent.top_p}; beside `thinking: true` Anthropic's API takes {THINKING_TOP_P_MIN} to 1"
    budget = config.thinking_budget_tokens
    if budget is not None and agent.max_tokens <= budget:
        text = (
            f"found {agent.max_tokens}; it counts the thought too, so it must exceed thinking_budget_tokens, {budget}"
        )
        yield "max_tokens", text


_NO_SETTINGS: Final = frozenset({"min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"})


def _build(request: BackendRequest[AnthropicConfig]) -> Backend:
    from mac_runner.backends.dialects.anthropic import AnthropicDialect
    from mac_runner.backends.http.backend import HttpBackend

    if find_spec("anthropic") is None:  # It is imported for the first schema.
        raise ModuleNotFoundError(name="anthropic")
    config = request.settings
    request.refuse(Unsupported(settings=_NO_SETTINGS, tokens=True))
    request.check_agents(partial(_objections, config))
    key_path = ("model_definitions", request.name, "anthropic_config", "api_key_env")
    return HttpBackend(
        request.name,
        AnthropicDialect(config),
        key=required_key(config.api_key_env, os.environ, path=key_path),
        clock=request.clock,
        say=request.say,
    )


SPEC = BackendSpec(
    settings=AnthropicConfig,
    build=_build,
    describe=lambda settings: f"anthropic, {settings.model}",
    serving=partial(serving_at, "base_url"),
    servers_key="base_url",
    constrains=lambda _settings: frozenset({"schema"}),
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("aiohttp", "anthropic"),
    connections=lambda settings: settings.max_in_flight,
)
