"""Readings of a run, and frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mac_runner.status import ModelSlots, Reading, StatusFrame, TurnRow
from mac_runner.types import TokenCount


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
