"""What is looked up on this machine before engines are laid out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.config import FleetConfig
from mac_runner.fleet.layout import LayoutError
from mac_runner.fleet.planning import local_plan, weight_bytes
from mac_runner.fleet.ports import LoopbackPorts
from tests.fleet.smi import listing, put_smi

M = FleetModelConfig


def put_model(folder: Path, *files: str, config: str = "{}") -> FleetModelConfig:
    """A directory of files of 1,000 bytes."""
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_bytes(bytes(1000))
    (folder / "config.json").write_text(config, encoding="utf-8")
    return M(model=str(folder))


def test_weights_are_counted_once_in_the_form_that_engines_read(tmp_path: Path) -> None:
    shards = put_model(tmp_path / "a", "model-1.safetensors", "model-2.safetensors", "consolidated.safetensors")
    assert weight_bytes(shards) == 2000
    assert weight_bytes(put_model(tmp_path / "b", "pytorch_model-1.bin", "training_args.bin")) == 1000
    assert weight_bytes(put_model(tmp_path / "c", "weights.safetensors")) == 1000
    assert weight_bytes(put_model(tmp_path / "d", "model.safetensors", config='{"torch_dtype": "float32"}')) == 500
    assert weight_bytes(put_model(tmp_path / "e", "model.safetensors", config="no JSON")) == 1000


def test_weights_are_not_guessed(tmp_path: Path) -> None:
    """A name on the hub, a command, and flags that change what the weights take."""
    shards = put_model(tmp_path / "a", "model.safetensors")
    command = {"engine": "command", "command": ("serve", "{port}")}

    assert weight_bytes(M(model="Qwen/Qwen3-8B")) is None
    assert weight_bytes(shards.model_copy(update=command)) is None
    for flag in ("quantization", "cpu-offload-gb", "dtype"):
        assert weight_bytes(shards.model_copy(update={"engine_args": {flag: "x"}})) is None


def test_programs_that_are_not_installed_are_refused_and_in_a_plan_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    models = {"a": M(model="m"), "b": M(model="m", engine="command", command=("no-such-server", "{port}"))}
    config = FleetConfig(gpus=1)

    with pytest.raises(LayoutError) as caught:
        local_plan(config, models)

    assert [".".join(map(str, path)) for path, _ in caught.value.problems] == [
        "model_definitions.a.fleet_config.engine",
        "model_definitions.b.fleet_config.command.0",
    ]
    notes = local_plan(config, models, is_dry=True).notes
    assert any("the program vllm" in note for note in notes)
    assert any("'no-such-server'" in note for note in notes)
    for name in ("vllm", "no-such-server"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    assert len(local_plan(config, models).lanes) == 2


@pytest.mark.ci
def test_a_cluster_that_gives_two_gpus_is_not_asked_for_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_smi(tmp_path, monkeypatch, listing(8))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,3")

    plan = local_plan(FleetConfig(), {"a": M(model="m")}, is_dry=True)

    assert [lane.place.label for lane in plan.lanes] == ["gpu 6", "gpu 3"]


def test_ports_are_different_and_free() -> None:
    ports = LoopbackPorts()
    first = ports.take(3)
    assert len(set(first)) == 3
    with socket.socket() as other:
        other.bind(("127.0.0.1", first[1]))
        other.listen()

        assert not ports.is_free(first[1])
        assert first[1] not in ports.take(3)
