"""The fleet that models would have on this machine: asks for GPUs, ports and sizes of weights, and starts nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.backends.nano import missing_packages
from mac_runner.config import FleetConfig
from mac_runner.errors import ConfigError
from mac_runner.extras import install_command
from mac_runner.files import read_regular
from mac_runner.fleet.gpus import among, discover
from mac_runner.fleet.launch import vllm_program
from mac_runner.fleet.layout import FleetPlan, LayoutError, lay_out
from mac_runner.fleet.ports import LoopbackPorts
from mac_runner.problems import Problem, dotted

_WEIGHT_FILES: Final = ("model*.safetensors", "*.safetensors", "pytorch_model*.bin")
"""Those of the first pattern that a directory has; it may hold the same weights twice."""
_SHRINKING: Final = frozenset({"quantization", "cpu_offload_gb", "load_format", "dtype"})
"""Flags by which weights take another amount of GPU memory than their files."""
_CONFIG_BYTES_MAX: Final = 1_000_000


def local_plan(
    config: FleetConfig,
    models: Mapping[str, FleetModelConfig],
    keys: frozenset[str] = frozenset(),
    *,
    is_dry: bool = False,
) -> FleetPlan:
    """The lanes of `models`, by their names, on this machine. `keys` are the variables with keys of other servers.

    With `is_dry` nothing will be started, so a program that is missing here is a note and no error.

    Raises LayoutError with all that does not fit, GpuError where the GPUs cannot be listed.
    """
    gpus = None if isinstance(config.gpus, int) else discover()
    if gpus is not None:
        gpus = among(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    weights = {name: size for name, model in models.items() if (size := weight_bytes(model)) is not None}
    programs = [problem for name, model in models.items() for problem in _missing_programs(name, model)]
    problems = [problem for name, model in models.items() for problem in _missing_files(name, model)]
    problems += [] if is_dry else programs
    try:
        plan = lay_out(config, models, gpus, LoopbackPorts(), weights=weights)
    except LayoutError as error:
        raise LayoutError([*error.problems, *problems]) from error
    if problems:
        raise LayoutError(problems)
    return replace(plan, keys=keys, notes=(*plan.notes, *(f"{dotted(path)}: {text}" for path, text in programs)))


def _missing_files(name: str, model: FleetModelConfig) -> Iterator[Problem]:
    """A model that is named as a directory, and is none; a template that is not what it was when a run recorded it."""
    is_directory = model.model.startswith(("/", "./", "../", "~"))
    if model.engine != "command" and is_directory and not Path(model.model).is_dir():
        text = f"there is no directory {model.model} here; write the path of a model in full, or its name on the hub"
        yield Problem(("model_definitions", name, "fleet_config", "model"), text)
    try:
        if model.chat_template is not None:
            model.chat_template.content()
    except ConfigError as fault:
        yield Problem(("model_definitions", name, "fleet_config", "chat_template"), str(fault))


def _missing_programs(name: str, model: FleetModelConfig) -> Iterator[Problem]:
    """What is not installed here that the engines of a model need."""
    section = ("model_definitions", name, "fleet_config")
    if model.engine == "nano" and (packages := missing_packages()):
        yield Problem(
            (*section, "engine"),
            f"'nano' needs {', '.join(packages)}, not installed here; `{install_command('nano')}` installs it",
        )
    if model.engine == "vllm" and shutil.which(vllm_program()) is None:
        text = "'vllm' needs the program vllm, which is neither beside this Python nor in PATH; install vLLM"
        yield Problem((*section, "engine"), text)
    if model.command and "{" not in model.command[0] and shutil.which(model.command[0]) is None:
        text = f"there is no program {model.command[0]!r}; write its path, or put it into PATH"
        yield Problem((*section, "command", 0), text)


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
