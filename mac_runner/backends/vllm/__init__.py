"""vLLM in this process: one engine for each entry of `model_definitions`, asked without a server in between."""

from __future__ import annotations

from mac_runner.backends.vllm.arguments import check_agents
from mac_runner.backends.vllm.backend import VllmBackend

__all__ = ["VllmBackend", "check_agents"]
