"""The command lines and the environment that engines are started with."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import click
from syrupy.assertion import SnapshotAssertion

from mac_runner.backends.fleet import FleetModelConfig
from mac_runner.fleet.testing import ADMIN_KEY, LaneSpec, Place, launch_of, parse
from mac_runner.serve import main
from mac_runner.types import JsonObject
from tests.fleet.smi import listing, slices

GPUS = parse(listing(2, mig=(1,)), slices(2, mig=(1,)))
LANE = LaneSpec(
    name="folk@0",
    model="folk",
    checkpoint="Qwen/Qwen3-8B",
    place=Place(number=0, gpus=GPUS[:1]),
    memory_share=0.46,
    port=8100,
    slots=32,
)
M = FleetModelConfig


def test_vllm_is_started_on_loopback_with_its_share_and_the_flags_of_the_file() -> None:
    args: JsonObject = {
        "kv_cache_dtype": "fp8",
        "enforce_eager": True,
        "enable-chunked-prefill": False,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "middleware": ["a", "b"],
        "compilation_config.mode": 3,
    }

    launch = launch_of(LANE, M(model="Qwen/Qwen3-8B", engine_args=args), vllm="/venv/bin/vllm")

    assert launch.argv == (
        *("/venv/bin/vllm", "serve", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", "8100"),
        *("--served-model-name", "Qwen/Qwen3-8B", "--max-num-seqs", "32", "--tensor-parallel-size", "1"),
        *("--gpu-memory-utilization", "0.46", "--enable-prefix-caching", "--kv-cache-dtype", "fp8", "--enforce-eager"),
        *("--no-enable-chunked-prefill", "--speculative-config", json.dumps(args["speculative_config"])),
        *("--middleware", "a", "b", "--compilation-config.mode", "3"),
    )
    assert launch.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert launch.sleep is None


def test_the_doors_for_sleep_are_open_only_where_lanes_take_turns() -> None:
    """They are open to whoever reaches the port."""
    turns = launch_of(replace(LANE, takes_turns=True), M(model="m"))

    assert "--enable-sleep-mode" in turns.argv
    assert turns.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert turns.sleep is not None
    assert (turns.sleep.sleep_path, turns.sleep.wake_path) == ("/sleep?level=1&mode=wait", "/wake_up")
    alone = launch_of(LANE, M(model="m"))
    assert "--enable-sleep-mode" not in alone.argv
    assert "VLLM_SERVER_DEV_MODE" not in alone.environment


def test_the_prefix_cache_can_be_switched_off(snapshot: SnapshotAssertion) -> None:
    launch = launch_of(LANE, M(model="m", engine_args={"enable-prefix-caching": False}))

    assert [flag for flag in launch.argv if "prefix" in flag] == snapshot


def test_mac_serve_understands_its_command_line_and_its_key_is_not_on_it() -> None:
    model = M(model="/models/tiny", engine="nano", engine_args={"kv_cache_gib": 0.5, "dtype": "float32"})

    launch = launch_of(replace(LANE, takes_turns=True, checkpoint="/models/tiny"), model)

    assert launch.argv[:4] == (sys.executable, "-m", "mac_runner.serve", "/models/tiny")
    with click.Context(main) as context:
        main.parse_args(context, list(launch.argv[3:]))
    asked = {name: context.params[name] for name in ("host", "port", "name", "max_num_seqs", "kv_cache_gib", "dtype")}
    assert asked == {
        "host": "127.0.0.1",
        "port": 8100,
        "name": "/models/tiny",
        "max_num_seqs": 32,
        "kv_cache_gib": 0.5,
        "dtype": "float32",
    }
    assert context.params["gpu_memory_utilization"] == 0.46
    assert context.params["admin_key_env"] == ADMIN_KEY
    key = launch.environment[ADMIN_KEY]
    assert launch.sleep is not None
    assert (launch.sleep.sleep_path, launch.sleep.body) == ("/admin/sleep", {})
    assert launch.sleep.headers == {"Authorization": f"Bearer {key}"}
    assert all(key not in argument for argument in launch.argv)
    assert key not in repr(launch)
    assert key != launch_of(LANE, model).environment[ADMIN_KEY]


def test_a_command_template_gets_its_port_its_model_and_its_gpus() -> None:
    command = ("serve", "{model}", "--port={port}", "--gpus", "{gpus}", '{"a": 1}')
    model = M(model="m", engine="command", command=command)

    launch = launch_of(replace(LANE, place=Place(number=0, gpus=GPUS)), model)

    assert launch.argv == ("serve", "m", "--port=8100", "--gpus", "0,1", '{"a": 1}')
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert launch.sleep is None


def test_an_engine_sees_its_slice_alone_and_without_gpus_none() -> None:
    part = replace(LANE, place=Place(number=0, gpus=GPUS[1:], slice=GPUS[1].slices[1]))
    assert launch_of(part, M(model="m")).environment["CUDA_VISIBLE_DEVICES"] == "MIG-11-5b91-5ad5"

    bare = launch_of(replace(LANE, place=Place(number=0)), M(model="m"))
    assert bare.environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert "--gpu-memory-utilization" not in bare.argv
