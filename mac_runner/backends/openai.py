"""The backend `openai`: models behind servers that speak the OpenAI protocol, including vLLM's server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.redaction import required_key
from mac_runner.errors import ConfigError
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.section import IDENTITY, RUNTIME, Section, Text, Urls, VariableName
from mac_runner.types import Decoding

__all__ = ["SPEC", "OpenaiConfig"]


class OpenaiConfig(Section):
    """A model behind any server that speaks the OpenAI protocol."""

    model: Annotated[Text, IDENTITY]
    """The model's name at the server."""
    base_urls: Annotated[Urls, RUNTIME]
    """The servers that serve it, all alike; a URL usually ends in `/v1`."""
    server: Annotated[Literal["openai", "vllm"], IDENTITY] = "openai"
    """What the servers understand: the protocol as OpenAI has it, or with vLLM's additions."""
    endpoint: Annotated[Literal["chat", "completions"], IDENTITY] = "chat"
    """Where requests go; `completions` sends the prompt as plain text, for base models without a chat template."""
    chat_template_kwargs: Annotated[Mapping[str, bool | int | float | str | None], IDENTITY] = {}
    """Switches of the model's chat template, such as `enable_thinking: false`; needs `server: vllm`."""
    reply_limit_parameter: Annotated[Literal["max_tokens", "max_completion_tokens"], RUNTIME] = "max_tokens"
    """What the servers call the limit on a reply; OpenAI's reasoning models want `max_completion_tokens`."""
    api_key_env: Annotated[VariableName | None, RUNTIME] = None
    """The environment variable that holds the key; the key itself never stands in a file."""
    admin_key_env: Annotated[VariableName | None, RUNTIME] = None
    """The environment variable that holds the key of `mac-serve` for its `/admin` paths; updates of weights need it."""
    weights_dir: Annotated[Text | None, RUNTIME] = None
    """Where tensors for an update of weights are written: a directory that all servers read, too; null: that of this
    machine's temporary files."""
    max_in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """How many requests are sent at once, all servers together; each of them gets one at least."""
    timeout_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 300.0
    """How long one sending of a request may take; `retry_config.request_deadline_s` bounds all of them together."""
    stall_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 30.0
    """A server with requests in flight that gives no answer for so long is sent a canary; one that hangs is set
    aside, and its requests are sent elsewhere."""


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
    servers_key="base_urls",
    constrains=constrains,
    honours=honours,
    packages=("aiohttp",),
    connections=lambda settings: settings.max_in_flight,
)
