"""The command line and the environment of an engine, and how it is put to sleep. Pure."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mac_runner.backends.fleet import filled, flag_of
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.fleet.model import LaneSpec
from mac_runner.types import JsonObject, JsonValue

HOST: Final = "127.0.0.1"
READY_PATH: Final = "/v1/models"
_DEVELOPMENT: Final = {"VLLM_SERVER_DEV_MODE": "1"}
"""Opens vLLM's paths for sleep and for new weights."""
ADMIN_KEY: Final = "MAC_RUNNER_LANE_ADMIN_KEY"
"""The environment variable that gives `mac-serve` the key of its `/admin` paths."""
_OF_THE_HUB: Final = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"})
"""With these an engine downloads its model."""
_API_KEY: Final = re.compile(r"API_?KEY$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepWay:
    """How an engine gives its memory back, and takes it again: two POST requests to paths of its server."""

    sleep_path: str
    wake_path: str
    body: JsonObject | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How an engine is started."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    """What is set besides the environment of this process."""
    ready_path: str = READY_PATH
    """A GET request to it is answered with 200 once the engine serves."""
    sleep: SleepWay | None = None
    """None for an engine that does not take turns."""


def launch_of(lane: LaneSpec, model: FleetModelConfig, *, vllm: str | None = None, admin_key: str = "") -> Launch:
    """How the engine of a lane is started. `vllm` is the program, which is looked for where it is not given."""
    devices = _devices(lane) | (_DEVELOPMENT if model.weight_updates else {})
    if model.engine == "command":
        assert model.command is not None, "settings are checked when a file is loaded"
        fields = {"port": str(lane.port), "model": model.model, "gpus": ",".join(lane.place.visible)}
        return Launch(argv=filled(model.command, fields), environment=devices)
    if model.engine == "nano":
        return _nano(lane, model, devices, admin_key or secrets.token_hex(16))
    return _vllm(lane, model, devices, vllm or vllm_program())


def withheld(environ: Iterable[str], keys: Collection[str]) -> frozenset[str]:
    """The variables that no engine gets: keys of other servers. `keys` are those that experiments name.

    With `VLLM_API_KEY`, vLLM would refuse the requests of the fleet.
    """
    return frozenset(name for name in environ if name in keys or _API_KEY.search(name)) - _OF_THE_HUB


def vllm_program() -> str:
    """`vllm` beside this Python, or where the PATH has it."""
    beside = shutil.which("vllm", path=str(Path(sys.executable).parent))
    return beside or shutil.which("vllm") or "vllm"


def _vllm(lane: LaneSpec, model: FleetModelConfig, devices: dict[str, str], program: str) -> Launch:
    flags: dict[str, JsonValue] = {
        "host": HOST,
        "port": lane.port,
        "served_model_name": lane.checkpoint,
        "max_num_seqs": lane.slots,
        "tensor_parallel_size": model.tensor_parallel_size,
    }
    if lane.place.gpus:
        flags["gpu_memory_utilization"] = lane.memory_share
    if model.chat_template is not None:
        flags["chat_template"] = str(model.chat_template.path)
    if lane.takes_turns:
        flags["enable_sleep_mode"] = True
    named = {name.replace("-", "_") for name in model.engine_args}
    if "enable_prefix_caching" not in named:
        flags["enable_prefix_caching"] = True
    argv = (program, "serve", lane.checkpoint, *_flags(flags), *_flags(model.engine_args))
    if not lane.takes_turns:
        return Launch(argv=argv, environment=devices)
    # The default of `/sleep` is to abort what runs; the lane is drained before, and waiting costs nothing then.
    way = SleepWay(sleep_path="/sleep?level=1&mode=wait", wake_path="/wake_up")
    return Launch(argv=argv, environment=devices | _DEVELOPMENT, sleep=way)


def _nano(lane: LaneSpec, model: FleetModelConfig, devices: dict[str, str], admin_key: str) -> Launch:
    flags: dict[str, JsonValue] = {
        "host": HOST,
        "port": lane.port,
        "name": lane.checkpoint,
        "max_num_seqs": lane.slots,
        "tensor_parallel_size": model.tensor_parallel_size,
        "admin_key_env": ADMIN_KEY,
    }
    if lane.place.gpus:
        flags["gpu_memory_utilization"] = lane.memory_share
    argv = (sys.executable, "-m", "mac_runner.serve", lane.checkpoint, *_flags(flags), *_flags(model.engine_args))
    way = SleepWay(
        sleep_path="/admin/sleep",
        wake_path="/admin/wake",
        body={},
        headers={"Authorization": f"Bearer {admin_key}"},
    )
    return Launch(argv=argv, environment={**devices, ADMIN_KEY: admin_key}, sleep=way if lane.takes_turns else None)


def _devices(lane: LaneSpec) -> dict[str, str]:
    """Which GPUs an engine sees, numbered as `nvidia-smi` numbers them; on a place without GPUs, none."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(lane.place.visible)}
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **visible} if lane.place.gpus else visible


def _flags(values: Mapping[str, JsonValue]) -> Iterator[str]:
    """Settings as command-line flags: switches by their names, mappings as JSON, each member of a list by itself."""
    for name, value in values.items():
        flag = flag_of(name)
        match value:
            case True:
                yield flag
            case False:
                yield f"--no-{flag.removeprefix('--')}"
            case list() | tuple() if not any(isinstance(member, list | tuple | dict) for member in value):
                yield flag
                yield from map(str, value)
            case dict() | list() | tuple():
                yield from (flag, json.dumps(value, ensure_ascii=False))
            case _:
                yield from (flag, str(value))
