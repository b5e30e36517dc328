"""The gate before an engine: never too many inside, in order, and no slot is lost."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random

import pytest

from mac_runner.fleet.testing import Gate
from mac_runner.simulation.testing import SimulatedLoop
from tests.faults.tier import SCALE


async def storm(random: Random) -> None:
    limit, inside, entered = random.randint(0, 4), 0, list[int]()
    gate = Gate(lambda: limit)

    async def caller(number: int) -> None:
        nonlocal inside
        is_again = False
        while True:
            await gate.enter(is_again=is_again)
            inside += 1
            assert inside <= gate.inside
            entered.extend([] if is_again else [number])
            try:
                await asyncio.sleep(random.choice((0.0, 0.001, 1.0)))
            finally:
                inside -= 1
                gate.leave()
            if random.random() < 0.8:
                return
            is_again = True

    callers = []
    for number in range(30):
        callers.append(asyncio.create_task(caller(number)))
        if random.random() < 0.7:
            await asyncio.sleep(random.choice((0.0, 0.0, 0.001, 0.5)))
        if random.random() < 0.3:
            random.choice(callers).cancel()
        if random.random() < 0.2:
            limit = random.randint(0, 4)
            gate.renew()
            assert inside <= gate.inside
    limit = 2
    gate.renew()
    await asyncio.gather(*callers, return_exceptions=True)
    assert [one.exception() for one in callers if not one.cancelled()].count(None) + sum(
        one.cancelled() for one in callers
    ) == len(callers)
    assert gate.inside == inside == 0
    await asyncio.gather(gate.enter(), gate.enter())  # The loop says so if one waits for ever.


def test_no_slot_is_lost_whoever_gives_up_and_however_the_limit_changes(subtests: pytest.Subtests) -> None:
    for seed in range(300 * SCALE):
        with subtests.test(str(seed)), asyncio.Runner(loop_factory=partial(SimulatedLoop, seed)) as runner:
            runner.run(storm(Random(seed)))


def test_those_who_wait_are_let_in_in_their_order_and_those_who_come_again_first() -> None:
    async def program() -> list[str]:
        gate, entered = Gate(lambda: 1), list[str]()
        await gate.enter()

        async def caller(name: str, *, is_again: bool) -> None:
            await gate.enter(is_again=is_again)
            entered.append(name)
            gate.leave()

        calls = []
        for name in ("first", "second", "again"):
            calls.append(asyncio.create_task(caller(name, is_again=name == "again")))
            await asyncio.sleep(0.01)
        gate.leave()
        await asyncio.gather(*calls)
        return entered

    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(1)) as runner:
        assert runner.run(program()) == ["again", "first", "second"]
