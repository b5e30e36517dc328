"""Updates of a model that several engines serve."""

from __future__ import annotations

import asyncio
import heapq
from pathlib import Path
from random import Random

import pytest

from mac_runner.backends import Backend
from mac_runner.errors import WeightMismatchError, WeightUpdateError
from mac_runner.scheduler.testing import EngineWeights, Policies, PolicyWindow
from mac_runner.types import JsonObject, PolicyVersion, Reply, Request
from mac_runner.weights import WeightUpdate
from tests.faults.tier import SCALE
from tests.sim.training import checkpoint


class Engine(Backend):
    """Takes weights, after it raised what it has to raise."""

    capacity = 1
    update_obstacle: str | None = None

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.version = 0

    async def generate(self, request: Request) -> Reply:
        raise NotImplementedError

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
            EngineWeights(engine=name, models=frozenset({"m"}), present=PolicyVersion(0), backend=engine)
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


class Loop:
    """A run and its trainer in simulated time: `slots` conversations at once, each of some length, some of which fail.

    A trainer takes what finishes in its order, and needs some time for a version of each `batch`. It is killed now and
    then, with the run; both go on with what was on the disk, which half-done conversations are.
    """

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.slots, self.batch, self.max_lag = chance.randint(1, 20), chance.randint(1, 8), chance.randint(0, 4)
        self.to_begin = list(range(self.batch * chance.randint(1, 30)))
        self.now_s, self.version, self.first = 0.0, 0, chance.choice((0, 0, 5))
        self.version = self.first
        self.queue: list[int] = []
        self.open: dict[int, int] = {}
        self.begun_with: dict[int, int] = {}
        self.ends: list[tuple[float, int]] = []
        self.lags: list[int] = []
        self.finished = 0
        self.ready_at_s: float | None = None
        self.window = self.fresh()

    def fresh(self) -> PolicyWindow:
        return PolicyWindow(self.max_lag, self.batch, first=self.first, version=self.version)

    def length_s(self) -> float:
        """Most are short, and some take very long."""
        return self.chance.expovariate(1.0) * (1 if self.chance.random() < 0.9 else 100)

    def play(self) -> None:
        while self.to_begin or self.open or len(self.queue) >= self.batch:
            while self.to_begin and len(self.open) < self.slots and self.window.is_open:
                self.begin(self.to_begin.pop(0))
            self.train()
            moments = [*([self.ends[0][0]] if self.ends else []), *([self.ready_at_s] if self.ready_at_s else [])]
            assert moments, "nothing goes on, and nothing may begin"
            self.now_s = min(moments)
            if self.ready_at_s is not None and self.ready_at_s <= self.now_s:
                self.version, self.ready_at_s = self.version + 1, None
                self.window.update(self.version)
            elif self.ends:
                self.end(heapq.heappop(self.ends)[1])
            if self.chance.random() < 0.02:
                self.resume()

    def begin(self, conversation: int) -> None:
        self.window.begin(conversation)
        self.open[conversation] = self.begun_with[conversation] = self.version
        heapq.heappush(self.ends, (self.now_s + self.length_s(), conversation))

    def end(self, conversation: int) -> None:
        del self.open[conversation]
        is_finished = self.chance.random() < 0.9
        self.window.end(conversation, is_finished=is_finished)
        if is_finished:
            self.finished += 1
            self.queue.append(conversation)

    def train(self) -> None:
        if self.ready_at_s is None and len(self.queue) >= self.batch:
            used, self.queue = self.queue[: self.batch], self.queue[self.batch :]
            self.lags += [self.version - self.begun_with[conversation] for conversation in used]
            self.ready_at_s = self.now_s + self.chance.expovariate(1.0) + 1e-9

    def resume(self) -> None:
        self.window = self.fresh()
        self.window.add_finished(self.finished)
        for conversation, version in self.open.items():
            self.window.begin(conversation, version)


def test_nothing_is_used_too_late_and_the_run_never_waits_for_ever() -> None:
    reached: set[tuple[int, int]] = set()
    for seed in range(300 * SCALE):
        loop = Loop(Random(seed))

        loop.play()

        assert max(loop.lags, default=0) <= loop.max_lag, seed
        assert loop.window.lag == 0
        reached.add((loop.max_lag, max(loop.lags, default=0)))
    assert {(lag, lag) for lag in range(5)} <= reached, "the bound is never reached: it is wider than the window"


def test_without_a_bound_all_begin() -> None:
    window = PolicyWindow(None, 1)
    for conversation in range(100):
        assert window.is_open
        window.begin(conversation)
    window.update(9)
    assert (window.oldest, window.lag) == (0, 9)
