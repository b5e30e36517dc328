"""Updates of a model that several engines serve."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mac_runner.errors import WeightMismatchError, WeightUpdateError
from mac_runner.scheduler.policies import EngineWeights, Policies
from mac_runner.types import JsonObject, PolicyVersion
from mac_runner.weights import WeightUpdate
from tests.sim.training import checkpoint


class Engine:
    """Takes weights, after it raised what it has to raise."""

    update_obstacle: str | None = None

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.version = 0

    async def update_weights(self, update: WeightUpdate) -> str | None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop()
        self.version = update.version
        return None


def test_update_that_the_first_engine_refuses_changes_none_and_one_that_another_fails_at_can_be_given_again(
    tmp_path: Path,
) -> None:
    weights = checkpoint(tmp_path / "1.safetensors", "v1")
    engines = [Engine(), Engine()]
    events: list[tuple[str, JsonObject]] = []

    async def main() -> None:
        held = [
            EngineWeights(engine=name, models=frozenset({"m"}), present=PolicyVersion(0), updater=engine)
            for name, engine in zip("ab", engines, strict=True)
        ]
        for each in held:
            each.up.set()
        policies = Policies(held, {}, log=lambda name, fields: events.append((name, fields)), sources=lambda: ())

        engines[0].faults = [WeightMismatchError("names")]
        with pytest.raises(WeightMismatchError, match=r"^names$"):
            await policies.update("m", weights, None, blocking=True)
        assert [each.version for each in engines] == [0, 0]
        assert not events

        engines[1].faults = [WeightUpdateError("the disk")]
        with pytest.raises(WeightUpdateError, match=r"b not: .* version=1"):
            await policies.update("m", weights, None, blocking=True)
        assert [each.version for each in engines] == [1, 0]
        assert ("EVENT_POLICY_BEHIND", {"model": "b", "version": 1, "why": "the disk"}) in events

        assert await policies.update("m", weights, 1, blocking=True) == 1
        assert [each.version for each in engines] == [1, 1]
        assert [each.present.version for each in held] == [1, 1]

    asyncio.run(main())
