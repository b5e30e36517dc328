"""What `nvidia-smi` says, what is made of it when it says nothing of use, and a lane that waits for its memory."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from mac_runner.errors import ConfigError
from mac_runner.fleet.testing import (
    Gpu,
    GpuError,
    LaneSpec,
    LaneState,
    Memory,
    Place,
    Slice,
    among,
    ask,
    discover,
    parse,
)
from tests.fleet.real_fleet import Heard, awaited, fleet_of, lane, pid_of, plan_of, stub_model, until
from tests.fleet.smi import H100, listing, put_smi, slices
from tests.patience import LIMIT_S, wait_for

ONE = "0, GPU-1, NVIDIA H100, 81559, 81079, Enabled"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a program `nvidia-smi` answer so."""
    return partial(put_smi, tmp_path / "bin", monkeypatch)


def found() -> tuple[Gpu, ...] | None:
    return discover(deadline_s=LIMIT_S)


@pytest.mark.ci
def test_eight_gpus_are_found_with_their_memory(smi: Callable[..., None]) -> None:
    smi(listing(8))
    gpus = found()

    assert gpus is not None
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert {(gpu.name, gpu.memory_mib, gpu.free_mib, gpu.is_mig, gpu.slices) for gpu in gpus} == {
        (H100, 81_559, 81_079, False, ())
    }


@pytest.mark.ci
def test_slices_belong_to_the_gpu_that_they_are_listed_under(smi: Callable[..., None]) -> None:
    smi(listing(3, mig=(0, 2)), slices(3, mig=(0, 2)))
    gpus = found()

    assert gpus is not None
    assert [(gpu.is_mig, [each.uuid for each in gpu.slices]) for gpu in gpus] == [
        (True, ["MIG-00-5b91-5ad5", "MIG-01-5b91-5ad5"]),
        (False, []),
        (True, ["MIG-20-5b91-5ad5", "MIG-21-5b91-5ad5"]),
    ]
    # A 3g.40gb slice of this GPU has 39.5 GiB; its name says 40 GB.
    assert {(each.profile, each.memory_mib) for gpu in gpus for each in gpu.slices} == {("3g.40gb", 38_146)}


@pytest.mark.ci
def test_a_machine_whose_driver_has_no_gpu_or_that_has_no_program_is_distinguished(
    smi: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for script in ("exit 0", "echo 'No devices were found'", "echo 'No devices were found'; exit 6"):
        smi(script=script)
        assert found() == (), script

    monkeypatch.setenv("PATH", str(tmp_path))
    assert found() is None


@pytest.mark.ci
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo 'driver is not loaded'; exit 9", "nvidia-smi ended with code 9: driver is not loaded"),
        ("echo 'GPU is lost. Reboot' >&2; exit 15", "nvidia-smi ended with code 15: GPU is lost. Reboot"),
        ("printf 'a\\033[31m'; exit 1", r"nvidia-smi ended with code 1: a\x1b[31m"),
        ("printf '\\377\\376garbage'", "nvidia-smi printed what is not understood"),
        ("kill -9 $$", "nvidia-smi ended with code -9"),
        (None, "cannot be run: "),
    ],
)
def test_an_answer_without_gpus_is_an_error_with_what_it_said(
    smi: Callable[..., None], tmp_path: Path, script: str | None, expected: str
) -> None:
    smi(script=script)
    if script is None:
        (tmp_path / "bin" / "nvidia-smi").write_bytes(b"\x7fELF no program")

    with pytest.raises(GpuError, match=re.escape(expected)):
        found()


@pytest.mark.ci
def test_a_hang_ends_at_the_deadline_and_leaves_no_process(
    smi: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, communicate = tmp_path / "hanging", subprocess.Popen.communicate

    def communicate_once_it_hangs(self: subprocess.Popen[str], **options: Any) -> tuple[str, str]:
        wait_for(lambda: hanging.exists() and hanging.read_text().endswith("\n"), "a hanging nvidia-smi")
        return communicate(self, **options)

    smi(script=f"sleep 600 & echo $$ $! > {hanging}; wait")
    monkeypatch.setattr(subprocess.Popen, "communicate", communicate_once_it_hangs)
    monkeypatch.setattr("mac_runner.fleet.gpus.GIVEN_UP_S", LIMIT_S)

    with pytest.raises(GpuError, match=r"0\.2 s and was"):
        ask((), deadline_s=0.2)

    left = [int(number) for number in hanging.read_text().split()]
    wait_for(lambda: not any(map(psutil.pid_exists, left)), "the end of killed processes")


@pytest.mark.parametrize(
    ("gpus", "parts"),
    [
        ("GPU is lost", ""),
        ("0, GPU-1, NVIDIA H100, [N/A], [N/A], Disabled", ""),
        ("0, GPU-1, NVIDIA H100, 81559, [GPU is lost], Disabled", ""),
        ("0, GPU-1, NVIDIA H100, 81559, [Insufficient Permissions], Enabled", ""),
        ("0, GPU-1, NVIDIA H100, 81559 MiB, 81079 MiB, Disabled", ""),
        ("0, GPU-1, NVIDIA H100, 81559, 81079", ""),
        ("0, GPU-1, NVIDIA H100, 81559, 81079, [Unknown Error]", ""),
        ("[N/A], GPU-1, NVIDIA H100, 81559, 81079, Disabled", ""),
        ("-1, GPU-1, NVIDIA H100, 81559, 81079, Disabled", ""),
        ("0, 1, NVIDIA H100, 81559, 81079, Disabled", ""),
        ("0, GPU-1, NVIDIA H100, 81559, 81079, Disabled\n0, GPU-2, NVIDIA H100, 81559, 81079, Disabled", ""),
        ("0, GPU-1, NVIDIA H100, 81559, 81079, Disabled\n1, GPU-1, NVIDIA H100, 81559, 81079, Disabled", ""),
        (ONE, "  MIG 3g.40gb     Device  0: (UUID: MIG-1)"),
        (ONE, "GPU 0: NVIDIA H100 (UUID: GPU-other)"),
        (ONE, "GPU 0: NVIDIA H100 (UUID: GPU-1)\n  MIG 3g.40gb     Device  0: (UUID: lost)"),
        (ONE, "GPU 0: NVIDIA H100 (UUID: GPU-1)\nUnable to determine the device handle"),
    ],
)
def test_a_list_of_gpus_or_of_slices_that_is_not_understood_is_refused(gpus: str, parts: str) -> None:
    with pytest.raises(GpuError, match="not understood"):
        parse(gpus, parts)


def test_a_gpu_without_mig_is_no_error() -> None:
    (gpu,) = parse("0, GPU-1, NVIDIA GeForce RTX 4090, 24564, 24000, [N/A]\n", "")

    assert not gpu.is_mig


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,3", [2, 3]),
        ("3, 1", [3, 1]),
        ("GPU-00000002", [2]),
        ("", []),
        ("-1", []),
        ("1,-1,2", [1]),
        ("MIG-11-5b91-5ad5", [1]),
    ],
)
def test_only_the_gpus_of_this_process_are_used(visible: str | None, indices: list[int]) -> None:
    gpus = parse(listing(4, mig=(1,)), slices(4, mig=(1,)))

    left = among(gpus, visible)

    assert [gpu.index for gpu in left] == indices
    if visible is not None and visible.startswith("MIG"):
        assert [each.uuid for each in left[0].slices] == [visible]


def test_a_visible_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES names '7'.* 0, 1;"):
        among(parse(listing(2), ""), "0,7")


EIGHTY = Gpu(index=0, uuid="GPU-0", name="NVIDIA H100 80GB HBM3", memory_mib=80_000, free_mib=79_000)


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
    return lambda: tuple(replace(EIGHTY, index=index, free_mib=each) for index, each in enumerate(mib))


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
    assert judged(lane_on(EIGHTY), [free(before), free(after)], is_asleep=is_asleep) is is_back


def test_each_gpu_of_a_group_must_be_free() -> None:
    group = lane_on(EIGHTY, replace(EIGHTY, index=1, uuid="GPU-1"))

    assert judged(group, [free(79_000, 79_000), free(79_000, 79_000)], is_asleep=False)
    assert not judged(group, [free(79_000, 79_000), free(79_000, 3_000)], is_asleep=False)


def test_where_nothing_says_how_much_is_free_no_start_waits_for_it() -> None:
    def fails() -> tuple[Gpu, ...] | None:
        raise GpuError("nvidia-smi ended with code 9")

    piece = Slice(uuid="MIG-1", profile="3g.40gb", memory_mib=40_000)

    assert judged(lane_on(), [], is_asleep=False)
    assert judged(lane_on(EIGHTY, slice_=piece), [], is_asleep=False)
    assert judged(lane_on(EIGHTY), [fails, fails], is_asleep=False)
    assert judged(lane_on(EIGHTY), [free(79_000), fails], is_asleep=True)
    assert judged(lane_on(EIGHTY), [lambda: None, lambda: None], is_asleep=False)


@pytest.mark.ci
@awaited
async def test_lane_waits_for_the_memory_of_its_gpu_before_it_starts_again(
    smi: Callable[..., None], tmp_path: Path
) -> None:
    answer = f"0, GPU-0, NVIDIA H100 80GB HBM3, 80000, $(cat {tmp_path}/free), Disabled"
    smi(script=f'echo x >> {tmp_path}/asked\necho "{answer}"')
    (tmp_path / "free").write_text("79000")
    plan = plan_of({"m": stub_model()})
    plan = replace(plan, lanes=tuple(replace(one, place=Place(number=0, gpus=(EIGHTY,))) for one in plan.lanes))
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
