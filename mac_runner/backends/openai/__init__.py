"""The backend `openai`: models behind servers that speak the OpenAI protocol, including vLLM's server."""

from __future__ import annotations

import os
from collections.abc import Iterator

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.openai.settings import OpenaiConfig, check, constrains, honours, key_of, unsupported
from mac_runner.registry import BackendSpec

__all__ = ["SPEC", "OpenaiConfig"]


def _build(request: BackendRequest[OpenaiConfig]) -> Backend:
    from mac_runner.backends.openai.backend import OpenaiBackend

    check(request.name, request.settings)
    request.refuse(unsupported(request.settings))
    return OpenaiBackend(
        request.name,
        request.settings,
        key=key_of(request.name, request.settings, os.environ),
        admin_key=key_of(request.name, request.settings, os.environ, "admin_key_env"),
        has_tokens=request.record_tokens,
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
