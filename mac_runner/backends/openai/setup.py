"""Configuration → backend: what the kind of server cannot do is refused here, before anything is touched."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from mac_runner.backends.base import BackendRequest, Unsupported
from mac_runner.backends.keys import key_in
from mac_runner.backends.openai.backend import OpenaiBackend
from mac_runner.backends.openai.settings import OpenaiConfig
from mac_runner.errors import ConfigError

_VLLM_SETTINGS: Final = frozenset({"top_k", "min_p", "repetition_penalty"})
"""The settings that are no part of OpenAI's protocol."""
_VARIABLE_CHARS_MAX: Final = 19
"""A longer name in lower case is not shown: it may be a key."""


def build(request: BackendRequest[OpenaiConfig]) -> OpenaiBackend:
    """The backend, its key taken from the environment. Raises ConfigError for what its servers could not be sent."""
    _check(request.name, request.settings)
    request.refuse(_unsupported(request.settings))
    return OpenaiBackend(
        request.name,
        request.settings,
        key=_key(request.name, request.settings, os.environ),
        has_tokens=request.record_tokens,
        clock=request.clock,
        say=request.say,
    )


def _unsupported(config: OpenaiConfig) -> Unsupported:
    """What servers cannot do that know only OpenAI's protocol; those of vLLM support everything."""
    if config.server == "vllm":
        return Unsupported()
    remedy = "leave it out, or set `openai_config.server: vllm` if its servers are vLLM's"
    return Unsupported(settings=_VLLM_SETTINGS, tokens=True, remedy=remedy)


def _check(name: str, config: OpenaiConfig) -> None:
    """Refuse addresses and switches that the servers of model `name` could not be sent."""
    section: tuple[str | int, ...] = ("model_definitions", name, "openai_config")
    for index, url in enumerate(config.base_urls):
        if url.rstrip("/") in [other.rstrip("/") for other in config.base_urls[:index]]:
            raise _error((*section, "base_urls", index), f"{url!r} stands here twice")
    if config.chat_template_kwargs and (config.server != "vllm" or config.endpoint != "chat"):
        key = (*section, "chat_template_kwargs")
        raise _error(key, "only servers of vLLM take these, at their chat endpoint; set `server: vllm` if they are")


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
        # The user may have pasted the key itself, and some keys are valid names.
        name_shown = f" {variable}" if variable.isupper() or len(variable) <= _VARIABLE_CHARS_MAX else ""
        raise _error(path, f"the environment variable{name_shown} is not set; set it to the key of the server")
    return key


def _error(key: tuple[str | int, ...], text: str) -> ConfigError:
    return ConfigError(f"{'.'.join(map(str, key))}: {text}", key=key)
