"""What engines may run on: GPUs, slices and groups of GPUs that the section `fleet` allows. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mac_runner.config import FleetConfig
from mac_runner.fleet.model import Gpu, Place, Slice
from mac_runner.problems import Problem

MEMORY_SHARE: Final = 0.92
"""The share of a GPU's memory that its engines take together."""
GIB_MIB: Final = 1024
_HALVES: Final[Mapping[int, str]] = {
    24: "2g.12gb",
    40: "3g.20gb",
    80: "3g.40gb",
    94: "3g.47gb",
    96: "3g.48gb",
    141: "3g.71gb",
}
"""By a GPU's memory in GiB, the profile of which two slices fit on it."""
_WITH_MIG: Final = re.compile(r"\b(A30|A100|A800|H20|H100|H200|H800|GH200|B200|GB200|B300|GB300)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """What engines may run on, and why it is not more."""

    whole: tuple[Gpu, ...] = ()
    slices: tuple[tuple[Gpu, Slice], ...] = ()
    without_gpu: int = 0
    """How many places a machine without GPUs has."""
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def usable(config: FleetConfig, gpus: Sequence[Gpu] | None) -> Usable:
    """The GPUs and slices that `fleet` allows, of those that are there; None: `nvidia-smi` is not installed."""
    if isinstance(config.gpus, int):
        return _without_gpus(config, config.gpus)
    if not gpus:
        why = "nvidia-smi is not installed here" if gpus is None else "nvidia-smi lists none that this process may use"
        remedy = "on a machine without GPUs write how many engines may run side by side, such as `gpus: 2`"
        return Usable(problems=(Problem(("fleet", "gpus"), f"there is no GPU: {why}; {remedy}"),))
    known = {gpu.index: gpu for gpu in gpus}
    if isinstance(config.gpus, tuple) and (unknown := [index for index in config.gpus if index not in known]):
        there = ", ".join(map(str, sorted(known)))
        text = f"there is no GPU {', '.join(map(str, unknown))} for this process; there are {there}"
        return Usable(problems=(Problem(("fleet", "gpus"), text),))
    chosen = gpus if config.gpus == "auto" else [known[index] for index in config.gpus]
    reasons = {gpu.index: reason for gpu in chosen if (reason := _unfit(gpu, config))}
    if reasons and (config.gpus != "auto" or len(reasons) == len(chosen)):
        return Usable(problems=tuple(Problem(("fleet", "gpus"), reason) for reason in reasons.values()))
    fit = [gpu for gpu in chosen if gpu.index not in reasons]
    notes = [f"{reason}; it is left out" for reason in reasons.values()]
    if len(fit) > config.max_gpus:
        left = ", ".join(str(gpu.index) for gpu in fit[config.max_gpus :])
        notes.append(f"gpu {left}: left out, because fleet.max_gpus is {config.max_gpus}")
    return _with_slices(config, fit[: config.max_gpus], notes)


def _without_gpus(config: FleetConfig, count: int) -> Usable:
    if not config.enable_mig:
        return Usable(without_gpu=count)
    text = "asks for slices of GPUs, and fleet.gpus is a number of places without a GPU; leave one of the two out"
    return Usable(problems=(Problem(("fleet", "enable_mig"), text),))


def _with_slices(config: FleetConfig, gpus: Sequence[Gpu], notes: list[str]) -> Usable:
    """The GPUs as they are, or the slices of those that have MIG on."""
    slices = tuple((gpu, each) for gpu in gpus for each in gpu.slices) if config.enable_mig else ()
    if config.enable_mig and not slices:
        return Usable(problems=(Problem(("fleet", "enable_mig"), mig_remedy(gpus[0])),))
    if slices:
        notes.append(
            "some releases of vLLM read the memory of another GPU for an engine on a slice: compare the size of the KV "
            "cache in its log with the slice"
        )
    return Usable(whole=tuple(gpu for gpu in gpus if not gpu.is_mig), slices=slices, notes=tuple(notes))


def _unfit(gpu: Gpu, config: FleetConfig) -> str:
    """Why engines cannot run on a GPU; empty where they can."""
    if gpu.is_mig and not config.enable_mig:
        off = f"`nvidia-smi -i {gpu.index} -mig 0` turns it off (as root, on an idle GPU)"
        return f"gpu {gpu.index}: MIG is on, so it has no whole memory to give; set fleet.enable_mig: true, or {off}"
    if gpu.is_mig and not gpu.slices:
        return f"gpu {gpu.index}: {mig_remedy(gpu)}"
    if gpu.is_mig and (parts := [each.uuid for each in gpu.slices if "c." in each.profile]):
        return f"gpu {gpu.index}: the slices {', '.join(parts)} share their memory; make one compute instance for each"
    if not gpu.is_mig and gpu.free_mib < MEMORY_SHARE * gpu.memory_mib:
        free = f"{gib(gpu.free_mib)} of {gib(gpu.memory_mib)} GiB are free"
        return f"gpu {gpu.index}: {free}, and engines take {MEMORY_SHARE:.0%} of it; another process uses it"
    return ""


def mig_remedy(gpu: Gpu) -> str:
    """That a GPU has no slices, and the commands that make two."""
    if not _WITH_MIG.search(gpu.name):
        return f"{gpu.name} has no MIG slices, and none is known that it could have; leave enable_mig out"
    on = "" if gpu.is_mig else f"nvidia-smi -i {gpu.index} -mig 1 && "
    half = _half(gpu)
    which = "" if half != "PROFILE" else f" (PROFILE: see `nvidia-smi mig -i {gpu.index} -lgip`)"
    command = f"`{on}nvidia-smi mig -i {gpu.index} -cgi {half},{half} -C`{which}"
    return f"{gpu.name} has no MIG slices; {command} makes two (as root, on an idle GPU), or leave enable_mig out"


def _half(gpu: Gpu) -> str:
    """The profile of half a GPU; where none is known, what prints the profiles that there are."""
    size = min(_HALVES, key=lambda gibs: abs(gibs * GIB_MIB - gpu.memory_mib))
    is_near = abs(size * GIB_MIB - gpu.memory_mib) < gpu.memory_mib / 30
    return _HALVES[size] if is_near else "PROFILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The places that the models of one `tensor_parallel_size` would like."""

    size: int
    models: int
    places: int | None
    """How many places at most; None for as many as there are."""


def places_for(found: Usable, wishes: Collection[Wish]) -> dict[int, tuple[Place, ...]]:
    """By `tensor_parallel_size`, the places of its models; none where it has no room.

    Each size gets one place first. The rest goes to the size that has the fewest GPUs for each of its models.
    """
    if found.without_gpu:
        # Engines of different sizes share places without GPUs: only the number of processes differs.
        every = tuple(Place(number=number) for number in range(found.without_gpu))
        return {wish.size: every for wish in wishes}
    counts = _counts(len(found.whole), len(found.slices), wishes)
    gpus, slices = iter(found.whole), iter(found.slices)
    places: dict[int, tuple[Place, ...]] = {}
    number = 0
    for size in sorted(counts, reverse=True):
        taken = list(_cut(gpus, slices, size, counts[size]))
        places[size] = tuple(
            Place(number=number + offset, gpus=group, slice=part) for offset, (group, part) in enumerate(taken)
        )
        number += len(taken)
    return places


def _counts(whole: int, slices: int, wishes: Collection[Wish]) -> dict[int, int]:
    """How many places each size gets. Slices serve engines on one GPU alone."""
    ordered = sorted(wishes, key=lambda wish: -wish.size)
    counts = {wish.size: 0 for wish in ordered}
    left = whole

    def has_room(wish: Wish) -> bool:
        if wish.places is not None and counts[wish.size] >= wish.places:
            return False
        return wish.size <= left + (slices - min(slices, counts[1]) if wish.size == 1 else 0)

    while True:
        open_to = [wish for wish in ordered if has_room(wish)]
        if not open_to:
            return counts
        wish = min(open_to, key=lambda each: (counts[each.size] > 0, counts[each.size] * each.size / each.models))
        if wish.size > 1 or counts[1] >= slices:
            left -= wish.size
        counts[wish.size] += 1


def _cut(
    gpus: Iterator[Gpu], slices: Iterator[tuple[Gpu, Slice]], size: int, count: int
) -> Iterator[tuple[tuple[Gpu, ...], Slice | None]]:
    """The next `count` places of a size: slices before whole GPUs."""
    for _ in range(count):
        if size == 1 and (part := next(slices, None)) is not None:
            yield (part[0],), part[1]
        else:
            yield tuple(islice(gpus, size)), None


def gib(mib: float) -> str:
    """So many MiB in GiB, for people."""
    return f"{mib / GIB_MIB:.1f}"
