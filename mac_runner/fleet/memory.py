"""Whether the memory that a lane held on its GPUs is free again, as `nvidia-smi` says.

vLLM measures the free memory when it starts, and takes a part of what it sees. So a lane that starts while the memory
of the one before is not back gets too little for its cache, or fails. On a machine without GPUs, and on slices, whose
free memory `nvidia-smi` does not list, nothing is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from mac_runner.errors import ConfigError
from mac_runner.fleet.gpus import discover
from mac_runner.fleet.model import Gpu, LaneSpec

SLACK_MIB: Final = 512
"""What may be missing: the driver's own use changes a little."""
SLEEP_SHARE: Final = 0.75
"""How much of its share a lane that sleeps gives back at least; its context and its graphs stay."""

Discover = Callable[[], tuple[Gpu, ...] | None]


class Memory:
    """The free memory of the GPUs of lanes, before and after."""

    def __init__(self, find: Discover = discover) -> None:
        self._find = find
        self._before: dict[str, dict[int, int]] = {}
        """What was free on each GPU before a lane started, or before it fell asleep."""

    async def remember(self, lane: LaneSpec) -> None:
        """Take what is free now, before `lane` starts or falls asleep."""
        self._before[lane.name] = await self._free(lane)

    async def is_back(self, lane: LaneSpec, *, is_asleep: bool) -> bool:
        """Whether a lane that ended, or fell asleep, has given its memory back.

        True where `nvidia-smi` does not say: then the engine itself looks when it starts.
        """
        before = self._before.get(lane.name, {})
        if not before:
            return True
        free = await self._free(lane)
        share = {gpu.index: int(lane.memory_share * gpu.memory_mib) for gpu in lane.place.gpus}
        if is_asleep:
            needed = {index: before[index] + SLEEP_SHARE * share[index] for index in before}
        else:
            # Another lane may have come to the GPU since; what a start needs is its share.
            needed = {index: min(before[index], share[index]) for index in before}
        return all(free[index] >= needed[index] - SLACK_MIB for index in free if index in needed)

    async def _free(self, lane: LaneSpec) -> dict[int, int]:
        if not lane.place.gpus or lane.place.slice is not None:
            return {}
        try:
            gpus = await asyncio.to_thread(self._find) or ()
        except ConfigError:
            return {}
        indices = {gpu.index for gpu in lane.place.gpus}
        return {gpu.index: gpu.free_mib for gpu in gpus if gpu.index in indices}
