"""The backend `openai`: models behind servers that speak the OpenAI protocol, including vLLM's server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.openai.settings import OpenaiConfig, check, constrains, honours, key_of, unsupported
from mac_runner.registry import BackendSpec

__all__ = ["SPEC", "OpenaiConfig"]


def _build(request: BackendRequest[OpenaiConfig]) -> Backend:
    from mac_runner.backends.dialects.openai import OpenaiDialect
    from mac_runner.backends.http.backend import HttpBackend
    from mac_runner.backends.http.weights import ServerWeights, VllmWeights

    name, config = request.name, request.settings
    check(name, config)
    request.refuse(unsupported(config))
    key = key_of(name, config, os.environ)
    admin_key = key_of(name, config, os.environ, "admin_key_env")
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


def _variants(settings: OpenaiConfig) -> Iterator[tuple[str, OpenaiConfig]]:
    for url in settings.base_urls:
        yield f"openai, {settings.model} at {url}", settings.model_copy(update={"base_urls": (url,)})


SPEC = BackendSpec(
    settings=OpenaiConfig,
    build=_build,
    variants=_variants,
    constrains=constrains,
    honours=honours,
    packages=("aiohttp",),
    connections=lambda settings: settings.max_in_flight,
)
