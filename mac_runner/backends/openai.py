"""The backend `openai`: models behind servers that speak the OpenAI protocol, including vLLM's server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.http.settings import OpenaiConfig
from mac_runner.backends.redaction import required_key
from mac_runner.errors import ConfigError
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.spec import serving_at
from mac_runner.types import Decoding

__all__ = ["SPEC", "OpenaiConfig"]


_VLLM_SETTINGS: Final = frozenset({"top_k", "min_p", "repetition_penalty"})
"""The settings that OpenAI's protocol does not have."""


def unsupported(config: OpenaiConfig) -> Unsupported:
    """What the servers cannot do: vLLM's support everything, others only OpenAI's protocol."""
    if config.server == "vllm":
        return Unsupported()
    remedy = "leave it out, or set `openai_config.server: vllm` if its servers are vLLM's"
    return Unsupported(settings=_VLLM_SETTINGS, tokens=True, remedy=remedy)


def constrains(config: OpenaiConfig) -> frozenset[Decoding]:
    """What the servers can hold replies to: OpenAI's protocol has nothing for it at the completions endpoint."""
    return CONSTRAINS_ALL if config.server == "vllm" or config.endpoint == "chat" else frozenset()


def honours(config: OpenaiConfig) -> frozenset[str]:
    """What the servers honour of an agent's keys for thinking: OpenAI's have no switch, vLLM's no verbosity."""
    if config.endpoint == "completions":
        return frozenset()
    return frozenset({"reasoning_effort", "thinking" if config.server == "vllm" else "verbosity"})


def _build(request: BackendRequest[OpenaiConfig]) -> Backend:
    from mac_runner.backends.dialects.openai import OpenaiDialect
    from mac_runner.backends.http.backend import HttpBackend
    from mac_runner.backends.http.weights import ServerWeights, VllmWeights

    name, config = request.name, request.settings
    if config.chat_template_kwargs and (config.server != "vllm" or config.endpoint != "chat"):
        text = "only servers of vLLM take these, at their chat endpoint; set `server: vllm` if they are"
        raise ConfigError.at(("model_definitions", name, "openai_config", "chat_template_kwargs"), text)
    request.refuse(unsupported(config))
    key = _key_of(name, "api_key_env", config.api_key_env)
    admin_key = _key_of(name, "admin_key_env", config.admin_key_env)
    directory = None if config.weights_dir is None else Path(config.weights_dir).expanduser()
    weights = None
    if admin_key is not None:
        weights = ServerWeights(lambda _url: admin_key, directory, keeps_broadcasts=directory is not None)
    elif config.server == "vllm":
        weights = VllmWeights(lambda _url: key, directory)
    return HttpBackend(
        name,
        OpenaiDialect(config, has_tokens=request.record_tokens),
        key=key,
        weights=weights,
        clock=request.clock,
        say=request.say,
    )


def _key_of(name: str, setting: str, variable: str | None) -> str | None:
    """A key of the servers of model `name`. Raises ConfigError when it is not set or no header can carry it."""
    path = ("model_definitions", name, "openai_config", setting)
    return None if variable is None else required_key(variable, os.environ, path=path)


SPEC = BackendSpec(
    settings=OpenaiConfig,
    build=_build,
    describe=lambda settings: f"openai, {settings.model}",
    serving=lambda settings: replace(serving_at("base_urls", settings), url=settings.base_urls[0]),
    servers_key="base_urls",
    constrains=constrains,
    honours=honours,
    packages=("aiohttp",),
    connections=lambda settings: settings.max_in_flight,
)
