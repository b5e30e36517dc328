"""The GPUs of this machine, as `nvidia-smi` lists them, and the places that engines run on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from mac_runner.errors import ConfigError
from mac_runner.printable import printable

ANSWER_S_MAX: Final = 10.0
"""How long `nvidia-smi` may take. A driver that hangs never answers."""
GIVEN_UP_S: Final = 1.0
"""How long a killed `nvidia-smi` may take to end; one that waits for the driver does not."""
GPU_QUERY: Final = (
    "--query-gpu=index,uuid,name,memory.total,memory.free,mig.mode.current",
    "--format=csv,noheader,nounits",
)
SLICE_QUERY: Final = ("-L",)
_NONE: Final = "No devices were found"
_NONE_EXIT: Final = 6
_GPU_LINE: Final = re.compile(r"GPU (?P<index>\d+): .+ \(UUID: (?P<uuid>GPU-[0-9A-Za-z-]+)\)")
_SLICE_LINE: Final = re.compile(
    r"MIG (?P<profile>(?:\d+c\.)?\d+g\.(?P<gigabytes>\d+)gb\S*) +Device +\d+: \(UUID: (?P<uuid>MIG-[^\s()]+)\)"
)
_MIG_MODES: Final[Mapping[str, bool]] = {"Enabled": True, "Disabled": False, "[N/A]": False, "N/A": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG slice."""

    uuid: str
    profile: str
    """Such as `3g.40gb`."""
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU as `nvidia-smi` lists it."""

    index: int
    uuid: str
    name: str
    memory_mib: int
    free_mib: int
    is_mig: bool = False
    slices: tuple[Slice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one engine runs on: a GPU, a slice of one, a group of GPUs, or none."""

    number: int
    gpus: tuple[Gpu, ...] = ()
    """Empty on a machine without GPUs."""
    slice: Slice | None = None

    @property
    def label(self) -> str:
        """`gpu 0`, `gpus 0-1`, `gpus 0, 2`, `gpu 0 slice MIG-…` or `place 0`."""
        if not self.gpus:
            return f"place {self.number}"
        if self.slice is not None:
            return f"gpu {self.gpus[0].index} slice {self.slice.uuid}"
        if len(self.gpus) == 1:
            return f"gpu {self.gpus[0].index}"
        indices = [gpu.index for gpu in self.gpus]
        if indices == list(range(indices[0], indices[-1] + 1)):
            return f"gpus {indices[0]}-{indices[-1]}"
        return f"gpus {', '.join(map(str, indices))}"

    @property
    def visible(self) -> tuple[str, ...]:
        """What `CUDA_VISIBLE_DEVICES` names."""
        return (self.slice.uuid,) if self.slice is not None else tuple(str(gpu.index) for gpu in self.gpus)

    @property
    def memory_mib(self) -> int | None:
        """The memory of each of its GPUs, or of its slice; of the smallest where they differ. None without a GPU."""
        if self.slice is not None:
            return self.slice.memory_mib
        return min((gpu.memory_mib for gpu in self.gpus), default=None)


class GpuError(ConfigError):
    """`nvidia-smi` did not say what GPUs there are."""


def discover(*, deadline_s: float = ANSWER_S_MAX) -> tuple[Gpu, ...] | None:
    """The GPUs of this machine; None where `nvidia-smi` is not installed.

    Raises GpuError where it fails, hangs, or prints what is not understood.
    """
    if (listing := ask(GPU_QUERY, deadline_s=deadline_s)) is None:
        return None
    gpus = parse(listing, "")
    if not any(gpu.is_mig for gpu in gpus):
        return gpus
    return parse(listing, ask(SLICE_QUERY, deadline_s=deadline_s) or "")


def ask(arguments: Sequence[str], *, deadline_s: float = ANSWER_S_MAX) -> str | None:
    """What `nvidia-smi` prints; None where it is not installed.

    Raises GpuError where it cannot be run, ends with an error, or does not end in time. It is killed then.
    """
    try:
        process = subprocess.Popen(  # noqa: S603 - fixed words
            ["nvidia-smi", *arguments],  # noqa: S607 - it is where the user's PATH has it
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise GpuError(f"nvidia-smi cannot be run: {fault}") from fault
    try:
        output, errors = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise GpuError(
            f"nvidia-smi gave no answer in {deadline_s:g} s and was killed; its driver may hang: run nvidia-smi by hand"
        ) from None
    finally:
        _end(process)
    if process.returncode == _NONE_EXIT and _NONE in output + errors:
        return ""
    if process.returncode != 0:
        words = printable(" ".join((output + errors).split())[:200])
        raise GpuError(f"nvidia-smi ended with code {process.returncode}: {words}")
    return output


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of it, with what it started, and let go of its pipes."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GIVEN_UP_S)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def parse(listing: str, slices: str) -> tuple[Gpu, ...]:
    """The GPUs of the answers to `GPU_QUERY` and `SLICE_QUERY`. Raises GpuError for a line that is not understood."""
    lines = [line.strip() for line in listing.splitlines() if line.strip()]
    gpus = [_gpu(line) for line in lines if not line.startswith(_NONE)]
    if len({gpu.index for gpu in gpus}) < len(gpus) or len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise _not_understood(listing)
    found = dict(_slices(slices, {gpu.uuid for gpu in gpus}))
    return tuple(replace(gpu, slices=tuple(found.get(gpu.uuid, ()))) for gpu in gpus)


def among(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves to this process, as a cluster sets it; None where it is not set.

    Raises GpuError for an entry that names none of them.
    """
    if visible is None:
        return tuple(gpus)
    left: dict[int, Gpu] = {}
    for name in filter(None, map(str.strip, visible.split(","))):
        if name in ("-1", "NoDevFiles", "none", "void"):
            break
        found = next(((gpu, part) for gpu in gpus for part in (None, *gpu.slices) if _is_named(gpu, part, name)), None)
        if found is None:
            there = ", ".join(str(gpu.index) for gpu in gpus) or "none"
            raise GpuError(f"CUDA_VISIBLE_DEVICES names {name!r}, and nvidia-smi lists {there}; correct or unset it")
        gpu, part = found
        kept = left.get(gpu.index, replace(gpu, slices=()))
        left[gpu.index] = gpu if part is None else replace(kept, slices=(*kept.slices, part))
    return tuple(left.values())


def _is_named(gpu: Gpu, part: Slice | None, name: str) -> bool:
    if part is not None:
        return name == part.uuid
    return name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))


def _gpu(line: str) -> Gpu:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(GPU_QUERY[0].split(",")):
        raise _not_understood(line)
    index, uuid, name, total, free, mig = cells
    if mig not in _MIG_MODES or not (
        index.isdecimal() and uuid.startswith("GPU-") and total.isdecimal() and free.isdecimal()
    ):
        raise _not_understood(line)
    return Gpu(
        index=int(index),
        uuid=uuid,
        name=printable(name),
        memory_mib=int(total),
        free_mib=int(free),
        is_mig=_MIG_MODES[mig],
    )


def _slices(text: str, uuids: set[str]) -> Iterator[tuple[str, list[Slice]]]:
    """The MIG slices by the UUID of their GPU."""
    slices: list[Slice] | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        if (gpu := _GPU_LINE.fullmatch(line)) is not None and gpu["uuid"] in uuids:
            slices = []
            yield gpu["uuid"], slices
        elif (found := _SLICE_LINE.fullmatch(line)) is not None and slices is not None:
            # The names of profiles are rounded up, so this is the least memory that such a slice has.
            memory_mib = int(found["gigabytes"]) * 10**9 // 2**20
            slices.append(Slice(uuid=found["uuid"], profile=found["profile"], memory_mib=memory_mib))
        else:
            raise _not_understood(line)


def _not_understood(text: str) -> GpuError:
    words = printable(" ".join(text.split())[:200])
    return GpuError(
        f"nvidia-smi printed what is not understood: {words}; a GPU may be lost, or may not be read by this user: run "
        "nvidia-smi by hand"
    )
