"""The backend `nano`: the engine of mac_runner itself, in this process, on a model's directory."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.nano.settings import NanoConfig, check_installed
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec

__all__ = ["SPEC", "NanoConfig"]


def _build(request: BackendRequest[NanoConfig]) -> Backend:
    from mac_runner.backends.nano.backend import NanoBackend

    check_installed(request.name)
    return NanoBackend(
        name=request.name,
        config=request.settings,
        traces=request.record_tokens,
        say=request.say,
        is_free=request.decoding == "none",
        thinking=request.thinking,
    )


def _variants(settings: NanoConfig) -> Iterator[tuple[str, NanoConfig]]:
    yield f"nano, {settings.model} in this process", settings


SPEC = BackendSpec(
    settings=NanoConfig,
    build=_build,
    variants=_variants,
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=("torch", "tokenizers", "safetensors", "jinja2", "numpy", "numba", "llvmlite", "llguidance", "pyarrow"),
    holds_memory=True,
)
