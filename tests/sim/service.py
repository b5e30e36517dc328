"""A service on simulated time that takes so much and turns the rest away, as those do that are paid by the request."""

from __future__ import annotations

import asyncio
import math

from mac_runner.errors import TransientBackendError
from mac_runner.types import Reply, Request
from tests.sim.engine import SimulatedEngine


class LimitedService(SimulatedEngine):
    """Serves `at_once` requests at a time, and begins `per_s` in a second on average, no more than that in a burst.

    What is too much it answers at once with "busy, come again in `pause_s`", and so it does with everything before
    `opens_at_s`, and with a share of the rest, the `whim_rate`. It never takes anything of the conversation that is
    `denied`.
    """

    def __init__(
        self, *, capacity: int, at_once: float = math.inf, per_s: float = math.inf, pause_s: float | None = None
    ) -> None:
        super().__init__(capacity=capacity)
        self.at_once = at_once
        self.per_s = per_s
        self.pause_s = pause_s
        self.denied = ""
        self.opens_at_s = 0.0
        self.whim_rate = 0.0
        self.serving = 0
        self.answered = 0
        self.served_s = 0.0
        self.last_answer_at_s = 0.0
        self._allowance = per_s
        self._allowed_at_s = 0.0

    async def answer(self, request: Request) -> Reply:
        await asyncio.sleep(0.01)
        if self.serving >= self.at_once or request.conversation == self.denied or not self._allows():
            raise TransientBackendError("status 429", retry_after_s=self.pause_s, is_busy=True)
        self.serving += 1
        began_at_s = asyncio.get_running_loop().time()
        try:
            return await super().answer(request)
        finally:
            self.serving -= 1
            self.answered += 1
            self.last_answer_at_s = asyncio.get_running_loop().time()
            self.served_s += self.last_answer_at_s - began_at_s

    def _allows(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s < self.opens_at_s or self.random.random() < self.whim_rate:
            return False
        if self.per_s == math.inf:
            return True
        self._allowance = min(self.per_s, self._allowance + (now_s - self._allowed_at_s) * self.per_s)
        self._allowed_at_s = now_s
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True
