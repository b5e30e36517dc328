"""Which engine runs where, what does not fit, and the command lines that engines are started with."""

from __future__ import annotations

import json
import socket
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mac_runner.backends.fleet import vllm_program
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.fleet.testing import (
    ADMIN_KEY,
    FleetPlan,
    Gpu,
    LaneSpec,
    LayoutError,
    LoopbackPorts,
    Place,
    launch_of,
    lay_out,
    local_plan,
    parse,
    weight_bytes,
)
from mac_runner.section import File
from mac_runner.serve import main
from mac_runner.spec import FleetConfig, SwapConfig
from mac_runner.types import JsonObject
from tests.fleet.smi import listing, put_smi, slices

GIB = 1 << 30

M = FleetModelConfig

H100S = parse(listing(8), "")


class FakePorts(LoopbackPorts):
    """Ports that are free but for some."""

    def __init__(self, *taken: int) -> None:
        super().__init__()
        self.taken = set(taken)

    def is_free(self, port: int) -> bool:
        return port not in self.taken

    def take(self, count: int) -> tuple[int, ...]:
        free = (port for port in range(20_000, 32_000) if port not in self.taken)
        return tuple(next(free) for _ in range(count))


def laid(
    models: Mapping[str, M],
    *,
    gpus: Sequence[Gpu] | None = H100S,
    ports: FakePorts | None = None,
    weights: Mapping[str, int] | None = None,
    use: object = "auto",
    **config: object,
) -> FleetPlan:
    return lay_out(
        FleetConfig.model_validate({"gpus": use, **config}), models, gpus, ports or FakePorts(), weights=weights
    )


def refusal(models: Mapping[str, M], **others: object) -> list[str]:
    """The lines that a layout is refused with."""
    with pytest.raises(LayoutError) as caught:
        laid(models, **others)  # type: ignore[arg-type]
    return str(caught.value).splitlines()


def shown(plan: FleetPlan) -> list[str]:
    return [f"{lane.name} {lane.place.label} {lane.memory_share}" for lane in plan.lanes]


def test_a_single_model_has_a_whole_gpu_on_each() -> None:
    plan = laid({"folk": M(model="m", max_num_seqs=16)})

    assert shown(plan) == [f"folk@{index} gpu {index} 0.92" for index in range(8)]
    assert plan.slots == 128
    assert plan.notes == ()


def test_two_models_share_each_gpu_and_three_take_turns_on_one(snapshot: SnapshotAssertion) -> None:
    both = laid({name: M(model=name) for name in "ab"}, gpus=H100S[:2])
    assert sorted(shown(both)) == [f"{name}@{n} gpu {n} 0.46" for name in "ab" for n in (0, 1)]

    turns = laid({name: M(model=name, max_num_seqs=8) for name in "abc"}, gpus=H100S[:1])
    assert shown(turns) == [f"{name}@0 gpu 0 0.46" for name in "abc"]
    assert all(lane.takes_turns for lane in turns.lanes)
    assert turns.slots == 16
    assert turns.notes == snapshot


def test_models_have_equally_many_lanes_where_they_can() -> None:
    for models in range(1, 9):
        for gpus in range(1, 9):
            for limit in (1, 2, 3):
                plan = laid({f"m{n}": M(model="m") for n in range(models)}, gpus=H100S[:gpus], max_agents_per_gpu=limit)
                counts = Counter(lane.model for lane in plan.lanes)
                assert max(counts.values()) - min(counts.values()) <= 1, (models, gpus, limit, counts)


def test_a_number_of_lanes_goes_to_distinct_gpus_before_it_splits_one(snapshot: SnapshotAssertion) -> None:
    assert shown(laid({"a": M(model="m", lanes=2)})) == ["a@0 gpu 0 0.92", "a@1 gpu 1 0.92"]
    assert shown(laid({"a": M(model="m", lanes=3)}, gpus=H100S[:2])) == [
        *("a@0 gpu 0 0.46", "a@0.2 gpu 0 0.46", "a@1 gpu 1 0.92")
    ]
    assert laid({"a": M(model="m", lanes=2)}, gpus=H100S[:4]).notes == snapshot


def test_groups_for_tensor_parallelism_are_of_neighbours_and_leave_room_for_others(snapshot: SnapshotAssertion) -> None:
    plan = laid({"big": M(model="b", tensor_parallel_size=4), "small": M(model="s")})
    assert shown(plan) == ["big@0 gpus 0-3 0.92", *(f"small@{n - 3} gpu {n} 0.92" for n in range(4, 8))]
    assert plan.lanes[0].place.visible == ("0", "1", "2", "3")

    chosen = laid({"big": M(model="b", tensor_parallel_size=2)}, use=[0, 4, 5, 7])
    assert [lane.place.label for lane in chosen.lanes] == ["gpus 0, 4", "gpus 5, 7"]

    assert refusal({"big": M(model="b", tensor_parallel_size=4)}, gpus=H100S[:3]) == snapshot


def test_a_model_that_fits_no_gpu_is_refused_with_its_size(snapshot: SnapshotAssertion) -> None:
    model = M(model="/models/llama-70b")

    assert refusal({"big": model}, weights={"big": 140 * GIB}) == snapshot
    assert (
        len(laid({"big": model.model_copy(update={"tensor_parallel_size": 2})}, weights={"big": 140 * GIB}).lanes) == 4
    )


def test_models_that_fit_alone_get_gpus_of_their_own(snapshot: SnapshotAssertion) -> None:
    """Of `auto`, each takes as many GPUs as the other leaves; where there are none, taking turns is the remedy."""
    heavy = dict.fromkeys("abc", 50 * GIB)
    models = {name: M(model=name) for name in "abc"}

    assert Counter(lane.model for lane in laid(models, weights=heavy).lanes) == {"a": 3, "b": 3, "c": 2}
    assert refusal(models, weights=heavy, gpus=H100S[:2]) == snapshot
    assert len(laid(models, weights=heavy, gpus=H100S[:2], max_agents_per_gpu=1).lanes) == 3


def test_more_lanes_than_may_take_turns_are_refused(snapshot: SnapshotAssertion) -> None:
    command: dict[str, Any] = {"engine": "command", "command": ("serve", "{port}")}
    three = {name: M(model=name) for name in "abc"}
    cases: list[tuple[Mapping[str, M], str]] = [
        (three, "off"),
        ({name: M(model=name, **command) for name in "abc"}, "batch"),
        ({**three, "c": M(model="c", **command)}, "fifo"),
        ({"a": M(model="a", lanes=5)}, "batch"),
    ]

    assert [refusal(models, gpus=H100S[:1], swap={"policy": swap}) for models, swap in cases] == snapshot


def test_slices_are_places_of_their_own(snapshot: SnapshotAssertion) -> None:
    gpus = parse(listing(2, mig=(0,)), slices(2, mig=(0,)))

    plan = laid({"a": M(model="m")}, gpus=gpus, enable_mig=True)

    assert [lane.place.label for lane in plan.lanes] == [
        *("gpu 0 slice MIG-00-5b91-5ad5", "gpu 0 slice MIG-01-5b91-5ad5", "gpu 1")
    ]
    assert plan.lanes[0].place.visible == ("MIG-00-5b91-5ad5",)
    assert plan.notes == snapshot


def test_gpus_that_cannot_be_used_are_refused_with_the_remedy(snapshot: SnapshotAssertion) -> None:
    with_mig = listing(1, mig=(0,))
    cases: list[tuple[Sequence[Gpu] | None, dict[str, Any]]] = [
        (None, {}),
        ((), {}),
        (H100S, {"use": [0, 9, 12]}),
        (H100S, {"enable_mig": True}),
        (parse(with_mig, ""), {"enable_mig": True}),
        (parse(listing(1, name="NVIDIA GeForce RTX 4090"), ""), {"enable_mig": True}),
        (None, {"use": 2, "enable_mig": True}),
        (parse(with_mig, slices(1, mig=(0,))), {}),
        (parse(with_mig, slices(1, mig=(0,), profiles=("1c.3g.40gb", "2c.3g.40gb"))), {"enable_mig": True}),
        (parse(listing(2, free=40_000), ""), {"use": [1]}),
    ]

    assert [refusal({"a": M(model="m")}, gpus=gpus, **config) for gpus, config in cases] == snapshot


def test_auto_leaves_out_what_cannot_be_used_and_says_so() -> None:
    gpus = (*parse(listing(12), "")[:2], *parse(listing(12, mig=(2,)), slices(12, mig=(2,)))[2:])
    gpus = (*gpus[:3], gpus[3].__class__(index=3, uuid="GPU-3", name="H", memory_mib=81_559, free_mib=9), *gpus[4:])

    plan = laid({"a": M(model="m")}, gpus=gpus)

    assert [lane.place.label for lane in plan.lanes] == [f"gpu {n}" for n in (0, 1, 4, 5, 6, 7, 8, 9)]
    assert [note.partition(":")[0] for note in plan.notes] == ["gpu 2", "gpu 3", "gpu 10, 11"]


def test_ports_follow_the_first_and_one_in_use_is_refused(snapshot: SnapshotAssertion) -> None:
    models = {"a": M(model="m", lanes=3)}
    assert [lane.port for lane in laid(models, first_port=9000).lanes] == [9000, 9001, 9002]
    assert laid(models, first_port=9000).lanes[2].url == "http://127.0.0.1:9002/v1"
    assert refusal(models, first_port=9000, ports=FakePorts(9001)) == snapshot
    assert [lane.port for lane in laid(models, ports=FakePorts(20_001)).lanes] == [20_000, 20_002, 20_003]


def test_everything_that_does_not_fit_is_reported_at_once() -> None:
    models = {
        "wide": M(model="w", tensor_parallel_size=16),
        "big": M(model="b"),
        "many": M(model="m", lanes=40),
        "fine": M(model="f"),
    }

    lines = refusal(models, weights={"big": 900 * GIB}, first_port=9000, ports=FakePorts(9000))

    assert [line.split(":")[0] for line in lines] == [
        "model_definitions.big.fleet_config.model",
        "model_definitions.wide.fleet_config.tensor_parallel_size",
        "model_definitions.many.fleet_config.lanes",
        "fleet.first_port",
    ]


def test_places_without_gpus_are_for_engines_of_any_size() -> None:
    plan = laid({"a": M(model="m", tensor_parallel_size=2), "b": M(model="n")}, gpus=None, use=2)

    assert sorted(shown(plan)) == [f"{name}@{n} place {n} 0.46" for name in "ab" for n in (0, 1)]
    assert plan.lanes[0].place.visible == ()


MODELS = st.builds(
    M,
    model=st.sampled_from(["one", "two", "three"]),
    engine=st.sampled_from(["vllm", "nano", "command"]),
    command=st.just(("serve", "{port}")),
    lanes=st.one_of(st.just("auto"), st.integers(1, 6)),
    tensor_parallel_size=st.sampled_from([1, 1, 1, 2, 4]),
    max_num_seqs=st.integers(1, 9),
)


@pytest.mark.ci
@settings(max_examples=200, deadline=None)
@given(
    models=st.dictionaries(st.sampled_from("abcdefg"), MODELS, min_size=1),
    gpus=st.integers(1, 8),
    has_gpus=st.booleans(),
    has_slices=st.booleans(),
    limit=st.integers(1, 4),
    swap=st.sampled_from(["batch", "fifo", "off"]),
    weights=st.one_of(st.just({}), st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 100 * GIB))),
)
def test_a_layout_keeps_its_limits_or_is_refused(
    models: dict[str, M],
    gpus: int,
    has_gpus: bool,
    has_slices: bool,
    limit: int,
    swap: str,
    weights: dict[str, int],
) -> None:
    mig = (0,) if has_slices and has_gpus else ()
    found = parse(listing(gpus, mig=mig), slices(gpus, mig=mig) if mig else "") if has_gpus else None
    config = FleetConfig(
        gpus="auto" if has_gpus else gpus,
        max_agents_per_gpu=limit,
        enable_mig=bool(mig),
        swap=SwapConfig.model_validate({"policy": swap}),
    )
    try:
        plan = lay_out(config, models, found, FakePorts(20_002), weights=weights)
    except LayoutError as error:
        assert {path[1] for path, _ in error.problems} <= models.keys()  # noqa: PT017 - what is refused names a model
        return

    assert len({lane.name for lane in plan.lanes}) == len({lane.port for lane in plan.lanes}) == len(plan.lanes)
    assert 20_002 not in {lane.port for lane in plan.lanes}
    used = [name for place in plan.places for name in place.visible]
    assert len(used) == len(set(used)), "no GPU and no slice is in two places"
    for name, model in models.items():
        lanes = [lane for lane in plan.lanes if lane.model == name]
        assert len(lanes) == model.lanes if model.lanes != "auto" else lanes
        if has_gpus:
            assert {len(lane.place.visible) for lane in lanes} == {model.tensor_parallel_size}
        for lane in lanes:
            room = lane.memory_share * (lane.place.memory_mib or 10**9) * (1 << 20) * len(lane.place.visible or "1")
            assert weights.get(name, 0) <= room
    for place in plan.places:
        on = plan.on(place)
        shares = sorted((lane.memory_share for lane in on), reverse=True)
        assert sum(shares[:limit]) <= 0.92, "what may be resident together fits"
        assert {lane.takes_turns for lane in on} <= {len(on) > limit}
        if len(on) > limit:
            assert swap != "off"
            assert "command" not in {models[lane.model].engine for lane in on}
            assert len({lane.model for lane in on}) == len(on), "a model takes no turns with itself"
    for name, model in models.items():
        counts = Counter(lane.place.number for lane in plan.lanes if lane.model == name)
        if model.lanes == "auto":
            assert max(counts.values()) == 1
        if not weights:
            others = [place for place in plan.places if len(place.visible) == model.tensor_parallel_size]
            has_room = [place for place in others if counts[place.number] == 0 and len(plan.on(place)) < limit]
            assert max(counts.values()) == 1 or not has_room, "distinct GPUs come first"
            if any(not plan.on(place) for place in others):
                assert all(len(plan.on(place)) <= 1 for place in others), "distinct GPUs come first"


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


def test_ports_are_different_and_free_and_of_one_fleet_for_as_long_as_it_is_there() -> None:
    ports = LoopbackPorts()
    first = ports.take(3)
    assert len({*first, *LoopbackPorts().take(3)}) == 6
    with socket.socket() as other:
        other.bind(("127.0.0.1", first[1]))
        other.listen()

        assert not ports.is_free(first[1])
        del ports
        assert first[1] not in LoopbackPorts().take(3)


GPUS = parse(listing(2, mig=(1,)), slices(2, mig=(1,)))


KEY = "of-the-admin-paths"
launched = partial(launch_of, admin_key=KEY)
LANE = LaneSpec(
    name="folk@0",
    model="folk",
    checkpoint="Qwen/Qwen3-8B",
    place=Place(number=0, gpus=GPUS[:1]),
    memory_share=0.46,
    port=8100,
    slots=32,
)


def test_vllm_is_started_on_loopback_with_its_share_and_the_flags_of_the_file() -> None:
    args: JsonObject = {
        "kv_cache_dtype": "fp8",
        "enforce_eager": True,
        "enable-chunked-prefill": False,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
        "middleware": ["a", "b"],
        "compilation_config.mode": 3,
    }

    launch = launched(LANE, M(model="Qwen/Qwen3-8B", engine_args=args))

    assert launch.argv == (
        *(vllm_program(), "serve", "Qwen/Qwen3-8B", "--host", "127.0.0.1", "--port", "8100"),
        *("--served-model-name", "Qwen/Qwen3-8B", "--max-num-seqs", "32", "--tensor-parallel-size", "1"),
        *("--gpu-memory-utilization", "0.46", "--enable-prefix-caching", "--kv-cache-dtype", "fp8", "--enforce-eager"),
        *("--no-enable-chunked-prefill", "--speculative-config", json.dumps(args["speculative_config"])),
        *("--middleware", "a", "b", "--compilation-config.mode", "3"),
    )
    assert launch.environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert launch.sleep is None


def test_vllm_renders_prompts_with_the_template_that_was_loaded_and_with_no_other(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }}")
    model = M(model="m", chat_template=File.at(file))

    argv = launched(LANE, model).argv
    assert argv[argv.index("--chat-template") + 1] == str(file)
    assert local_plan(FleetConfig(gpus=1), {"m": model}, is_dry=True).lanes
    file.write_text("{{ other }}")
    with pytest.raises(LayoutError) as caught:
        local_plan(FleetConfig(gpus=1), {"m": model}, is_dry=True)
    (problem,) = caught.value.problems
    assert problem.path == ("model_definitions", "m", "fleet_config", "chat_template")
    assert problem.text.startswith(f"{file}: its content changed: ")


def test_the_doors_for_sleep_are_open_only_where_lanes_take_turns() -> None:
    """They are open to whoever reaches the port."""
    turns = launched(replace(LANE, takes_turns=True), M(model="m"))

    assert "--enable-sleep-mode" in turns.argv
    assert turns.environment["VLLM_SERVER_DEV_MODE"] == "1"
    assert turns.sleep is not None
    assert (turns.sleep.sleep_path, turns.sleep.wake_path) == ("/sleep?level=1&mode=wait", "/wake_up")
    alone = launched(LANE, M(model="m"))
    assert "--enable-sleep-mode" not in alone.argv
    assert "VLLM_SERVER_DEV_MODE" not in alone.environment


def test_the_prefix_cache_can_be_switched_off(snapshot: SnapshotAssertion) -> None:
    launch = launched(LANE, M(model="m", engine_args={"enable-prefix-caching": False}))

    assert [flag for flag in launch.argv if "prefix" in flag] == snapshot


def test_mac_serve_understands_its_command_line_and_its_key_is_not_on_it() -> None:
    model = M(model="/models/tiny", engine="nano", engine_args={"kv_cache_gib": 0.5, "dtype": "float32"})

    launch = launched(replace(LANE, takes_turns=True, checkpoint="/models/tiny"), model)

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
    assert key == KEY


def test_a_command_template_gets_its_port_its_model_and_its_gpus() -> None:
    command = ("serve", "{model}", "--port={port}", "--gpus", "{gpus}", '{"a": 1}')
    model = M(model="m", engine="command", command=command)

    launch = launched(replace(LANE, place=Place(number=0, gpus=GPUS)), model)

    assert launch.argv == ("serve", "m", "--port=8100", "--gpus", "0,1", '{"a": 1}')
    assert launch.environment["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert launch.sleep is None


def test_an_engine_sees_its_slice_alone_and_without_gpus_none() -> None:
    part = replace(LANE, place=Place(number=0, gpus=GPUS[1:], slice=GPUS[1].slices[1]))
    assert launched(part, M(model="m")).environment["CUDA_VISIBLE_DEVICES"] == "MIG-11-5b91-5ad5"

    bare = launched(replace(LANE, place=Place(number=0)), M(model="m"))
    assert bare.environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert "--gpu-memory-utilization" not in bare.argv
