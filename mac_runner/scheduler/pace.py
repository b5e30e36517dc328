"""The pace of the event loop: a burst of replies is taken in over several of its passes, not all in one.

Engines answer in bursts: a step of a batch ends a hundred replies in the same instant. asyncio runs whatever is ready
in one go, and until that is done nobody else is heard: no timer, no signal, no status view.
"""

from __future__ import annotations

import asyncio

from mac_runner.clock import Clock
from mac_runner.limits import LOOP_PASS_S_MAX


class Pace:
    """Shared by those who do much at once; each asks for its turn before it goes on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pass_over_at_s: float | None = None

    async def turn(self) -> None:
        """Come back at once, or in a later pass of the loop where this one has taken LOOP_PASS_S_MAX already."""
        while not self._has_time():
            await self._clock.sleep(0)

    def _has_time(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._pass_over_at_s is None:
            self._pass_over_at_s = now_s + LOOP_PASS_S_MAX
            asyncio.get_running_loop().call_soon(self._begin_pass)
        return now_s < self._pass_over_at_s

    def _begin_pass(self) -> None:
        self._pass_over_at_s = None
