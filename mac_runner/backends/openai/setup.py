"""Configuration → backend: what the kind of server cannot do is refused here, before anything is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from mac_runner.backends.base import Lacks
from mac_runner.backends.keys import key_in
from mac_runner.backends.openai.backend import OpenaiBackend
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition, OpenaiConfig
from mac_runner.errors import ConfigError

_VLLM_SETTINGS: Final = frozenset({"top_k", "min_p", "repetition_penalty"})
"""The settings that are no part of OpenAI's protocol."""


def lacks(definition: ModelDefinition) -> Lacks:
    """What servers that know no more than OpenAI's protocol cannot do; those of vLLM lack nothing."""
    if _config(definition).server == "vllm":
        return Lacks()
    remedy = "leave it out, or set `openai_config.server: vllm` if its servers are vLLM's"
    return Lacks(settings=_VLLM_SETTINGS, tokens=True, remedy=remedy)


def check(name: str, definition: ModelDefinition) -> None:
    """Refuse addresses and switches that the servers of model `name` could not be sent. Raises ConfigError."""
    config = _config(definition)
    section: tuple[str | int, ...] = ("model_definitions", name, "openai_config")
    for index, url in enumerate(config.base_urls):
        if url.rstrip("/") in [other.rstrip("/") for other in config.base_urls[:index]]:
            raise _error((*section, "base_urls", index), f"{url!r} stands here twice")
    if config.chat_template_kwargs and (config.server != "vllm" or config.endpoint != "chat"):
        key = (*section, "chat_template_kwargs")
        raise _error(key, "only servers of vLLM take these, at their chat endpoint; set `server: vllm` if they are")


def build(
    name: str,
    definition: ModelDefinition,
    *,
    clock: Clock,
    say: Callable[[str], None],
    environ: Mapping[str, str],
) -> OpenaiBackend:
    """The backend of model `name`, its key taken from `environ`. Raises ConfigError when the key is not there."""
    config = _config(definition)
    return OpenaiBackend(
        name, config, key=_key(name, config, environ), has_tokens=definition.record_tokens, clock=clock, say=say
    )


def _key(name: str, config: OpenaiConfig, environ: Mapping[str, str]) -> str | None:
    variable = config.api_key_env
    if variable is None:
        return None
    path = ("model_definitions", name, "openai_config", "api_key_env")
    try:
        key = key_in(environ, variable)
    except ConfigError as error:
        raise _error(path, str(error)) from None
    if key is None:
        raise _error(path, f"the environment variable {variable} is not set; set it to the key of the server")
    return key


def _config(definition: ModelDefinition) -> OpenaiConfig:
    assert definition.openai_config is not None
    return definition.openai_config


def _error(key: tuple[str | int, ...], text: str) -> ConfigError:
    return ConfigError(f"{'.'.join(map(str, key))}: {text}", key=key)
