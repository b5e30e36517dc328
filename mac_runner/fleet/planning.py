"""The fleet that models would have on this machine: asks for GPUs, ports and sizes of weights, and starts nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.config import FleetConfig
from mac_runner.files import read_regular
from mac_runner.fleet.gpus import among, discover
from mac_runner.fleet.layout import FleetPlan, lay_out
from mac_runner.fleet.ports import LoopbackPorts

_WEIGHT_FILES: Final = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin")
"""Those of the first pattern that a directory has; it may hold the same weights twice."""
_SHRINKING: Final = frozenset({"quantization", "cpu_offload_gb", "load_format", "dtype"})
"""Flags by which weights take another amount of GPU memory than their files."""
_CONFIG_BYTES_MAX: Final = 1_000_000


def local_plan(config: FleetConfig, models: Mapping[str, FleetModelConfig]) -> FleetPlan:
    """The lanes of `models`, by their names, on this machine.

    Raises LayoutError with all that does not fit, GpuError where the GPUs cannot be listed.
    """
    gpus = None if isinstance(config.gpus, int) else discover()
    if gpus is not None:
        gpus = among(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    weights = {name: size for name, model in models.items() if (size := weight_bytes(model)) is not None}
    return lay_out(config, models, gpus, LoopbackPorts(), weights=weights)


def weight_bytes(model: FleetModelConfig) -> int | None:
    """What the weights of a model in a local directory take in a GPU; None where files do not say it."""
    folder = Path(model.model)
    if model.engine == "command" or _SHRINKING & {name.replace("-", "_") for name in model.engine_args}:
        return None
    for pattern in _WEIGHT_FILES:
        if files := [path for path in folder.glob(pattern) if path.is_file()]:
            size = sum(path.stat().st_size for path in files)
            return size // 2 if _is_float32(folder) else size
    return None


def _is_float32(folder: Path) -> bool:
    """Whether an engine halves the weights, because it computes with 16 bits by default."""
    try:
        found = json.loads(read_regular(folder / "config.json", _CONFIG_BYTES_MAX))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "float32" in (found.get("torch_dtype"), found.get("dtype"))
