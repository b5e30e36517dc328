"""Frames, and a clock that needs no time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mac_runner.status import ModelSlots, Reading, StatusFrame, TurnRow
from mac_runner.types import TokenCount


@dataclass(slots=True)
class SimulatedClock:
    """Every sleep is over at once, and remembered."""

    now_s: float = 0.0
    sleeps_s: list[float] = field(default_factory=list)

    def utc_now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s)

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, delay_s: float) -> None:
        self.sleeps_s.append(delay_s)
        self.now_s += delay_s
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def make_reading() -> Callable[..., Reading]:
    def make(**changes: Any) -> Reading:
        values: dict[str, Any] = {
            "experiment_name": "tos_100games",
            "profile": "vllm",
            "elapsed_s": 250.0,
            "planned": 100,
            "finished": 45,
            "failed": 1,
            "written": 43,
            "open": 32,
            "models": (ModelSlots(name="llama31_8b", in_flight=254, slots=256, ready=89, utilisation=0.91),),
            "ready": 89,
            "blocked": 12,
            "ready_rows": tuple(_row(i, "spkr_000", "") for i in range(10)),
            "pending_rows": tuple(_row(i, "mod_001", "after spkr_000") for i in range(10)),
            "turns": 4560,
            "tokens": TokenCount(prompt=1_200_000, cached=540_000, completion=345_000),
        }
        return Reading(**(values | changes))

    return make


@pytest.fixture
def frame(make_reading: Callable[..., Reading]) -> StatusFrame:
    return StatusFrame(reading=make_reading(), turns_per_s=99.1, tokens_per_s=34_500.0, eta_s=302.0)


def _row(index: int, agent: str, note: str) -> TurnRow:
    return TurnRow(task_id=f"bbq_{index}", round=index, agent=agent, model="llama31_8b", note=note)
