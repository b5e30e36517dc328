"""A scripted engine on simulated time: answers late, fails, refuses or hangs as its dice say."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from random import Random

from mac_runner.errors import RequestRefusedError, TransientBackendError
from mac_runner.types import Reply, Request, TokenCount


class SimulatedEngine:
    """Its words depend on prompt and seed alone; when and after how many faults they come depends on `dice`.

    Requests for which `refuses` is true are refused every time: that depends on the prompt, not on the dice.
    """

    def __init__(
        self,
        *,
        capacity: int = 4,
        token_budget: int | None = None,
        lookahead: int = 0,
        dice: int = 0,
        fault_rate: float = 0.0,
        latency_s_max: float = 2.0,
        refuses: Callable[[str], bool] = lambda _digest: False,
    ) -> None:
        self.capacity = capacity
        self.token_budget = token_budget
        self.lookahead = lookahead
        self.random = Random(dice)
        self.fault_rate = fault_rate
        self.latency_s_max = latency_s_max
        self.refuses = refuses
        self.in_flight = 0
        self.in_flight_max = 0
        self.is_started = False
        self.is_closed = False
        self.sent: list[tuple[str, int | None]] = []

    async def start(self) -> None:
        await asyncio.sleep(5.0)
        self.is_started = True

    async def close(self) -> None:
        self.is_closed = True

    async def generate(self, request: Request) -> Reply:
        assert self.is_started
        assert not self.is_closed
        self.sent.append((request.prompt.sha256, request.sampling.seed))
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self.answer(request)
        finally:
            self.in_flight -= 1

    async def answer(self, request: Request) -> Reply:
        await asyncio.sleep(self.random.random() * self.latency_s_max)
        if self.random.random() < self.fault_rate:
            raise TransientBackendError("connection reset", retry_after_s=self.random.choice([None, 3.0]))
        digest = hashlib.sha256(f"{request.prompt.sha256} {request.sampling.seed}".encode()).hexdigest()
        if self.refuses(digest):
            raise RequestRefusedError("context overflow")
        return Reply(text=f"word {digest[:12]}", tokens=TokenCount(prompt=7, cached=2, completion=3))
