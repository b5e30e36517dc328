"""A lane starts again when the memory of its GPU is back, as `nvidia-smi` says."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mac_runner.fleet.testing import Gpu, GpuError, LaneSpec, LaneState, Memory, Place, Slice
from tests.fleet.real_fleet import Heard, awaited, fleet_of, lane, pid_of, plan_of, stub_model, until

H100 = Gpu(index=0, uuid="GPU-0", name="NVIDIA H100 80GB HBM3", memory_mib=80_000, free_mib=79_000)
NVIDIA_SMI = """#!/bin/sh
echo x >> {folder}/asked
echo "0, GPU-0, NVIDIA H100 80GB HBM3, 80000, $(cat {folder}/free), Disabled"
"""


def lane_on(*gpus: Gpu, slice_: Slice | None = None) -> LaneSpec:
    place = Place(number=0, gpus=gpus, slice=slice_)
    return replace(plan_of({"m": stub_model()}).lanes[0], place=place, memory_share=0.45)


def judged(lane: LaneSpec, looks: list[Callable[[], tuple[Gpu, ...] | None]], *, is_asleep: bool) -> bool:
    """Whether the memory is back, by one look before and one after."""
    memory = Memory(lambda: looks.pop(0)())

    async def play() -> bool:
        await memory.remember(lane)
        return await memory.is_back(lane, is_asleep=is_asleep)

    return asyncio.run(play())


def free(*mib: int) -> Callable[[], tuple[Gpu, ...]]:
    return lambda: tuple(replace(H100, index=index, free_mib=each) for index, each in enumerate(mib))


@pytest.mark.parametrize(
    ("before", "after", "is_asleep", "is_back"),
    [
        (79_000, 79_000, False, True),
        (79_000, 3_000, False, False),
        (79_000, 42_000, False, True),  # Another lane came to the GPU since; its share is free.
        (20_000, 20_000, False, True),  # Another program had most of it before, too.
        (20_000, 10_000, False, False),
        (3_000, 36_000, True, True),
        (3_000, 18_000, True, False),  # Only half came back.
    ],
)
def test_memory_is_back_when_a_start_has_what_it_had(before: int, after: int, is_asleep: bool, is_back: bool) -> None:
    assert judged(lane_on(H100), [free(before), free(after)], is_asleep=is_asleep) is is_back


def test_each_gpu_of_a_group_must_be_free() -> None:
    group = lane_on(H100, replace(H100, index=1, uuid="GPU-1"))

    assert judged(group, [free(79_000, 79_000), free(79_000, 79_000)], is_asleep=False)
    assert not judged(group, [free(79_000, 79_000), free(79_000, 3_000)], is_asleep=False)


def test_where_nothing_says_how_much_is_free_no_start_waits_for_it() -> None:
    def fails() -> tuple[Gpu, ...] | None:
        raise GpuError("nvidia-smi ended with code 9")

    piece = Slice(uuid="MIG-1", profile="3g.40gb", memory_mib=40_000)

    assert judged(lane_on(), [], is_asleep=False)
    assert judged(lane_on(H100, slice_=piece), [], is_asleep=False)
    assert judged(lane_on(H100), [fails, fails], is_asleep=False)
    assert judged(lane_on(H100), [free(79_000), fails], is_asleep=True)
    assert judged(lane_on(H100), [lambda: None, lambda: None], is_asleep=False)


@pytest.mark.ci
@awaited
async def test_lane_waits_for_the_memory_of_its_gpu_before_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "free").write_text("79000")
    plan = plan_of({"m": stub_model()})
    plan = replace(plan, lanes=tuple(replace(one, place=Place(number=0, gpus=(H100,))) for one in plan.lanes))
    heard = Heard()

    def asked() -> int:
        return len((tmp_path / "asked").read_text().split())

    async with fleet_of(plan, heard, tmp_path) as fleet:
        await fleet.model("m").start()
        (tmp_path / "free").write_text("2000")
        looks = asked()
        os.kill(pid_of(fleet, "m@0"), signal.SIGKILL)
        await until(lambda: asked() >= looks + 3)
        assert lane(fleet, "m@0").state is LaneState.RESTING
        (tmp_path / "free").write_text("79000")
        await until(lambda: fleet.model("m").up)

    assert heard.names("m@0") == ["START", "UP", "DEAD", "RESTART", "UP"]
    assert heard.events[0][1]["gpu"] == "0"
