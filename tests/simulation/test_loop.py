"""The simulated loop does what the simulations rely on, on this version of Python."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from itertools import permutations

import pytest

from mac_runner.simulation.testing import DeadlockError, ForbiddenError, SimulatedClock, SimulatedLoop, simulate


def order(seed: int, names: str = "abc") -> str:
    """The order in which tasks that are ready at once run."""
    said: list[str] = []

    async def say(name: str) -> None:
        said.append(name)

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(say(name))

    simulate(program, seed=seed)
    return "".join(said)


def test_time_jumps_to_the_next_timer_and_no_further() -> None:
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, delay_s: float) -> None:
        await SimulatedClock().sleep(delay_s)
        woken.append((name, SimulatedClock().monotonic_s()))

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            for name, delay_s in (("week", 604_800.0), ("second", 1.0), ("hour", 3600.0)):
                group.create_task(sleep(name, delay_s))

    simulate(program)
    assert woken == [("second", 1.0), ("hour", 3600.0), ("week", 604_800.0)]


def test_what_is_ready_runs_in_any_order_and_in_the_same_one_for_a_seed() -> None:
    orders = [order(seed) for seed in range(60)]

    assert set(orders) == {"".join(letters) for letters in permutations("abc")}
    assert orders == [order(seed) for seed in range(60)]


def test_a_program_in_which_all_tasks_wait_is_an_error() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        simulate(stuck)


def test_a_task_left_behind_is_an_error() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        program.kept = loop.create_task(asyncio.sleep(1.0))  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="tasks left behind"):
        simulate(program)


async def _listen() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


async def _connect() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asyncio.get_running_loop().add_reader(ours, print)


async def _thread() -> None:
    await asyncio.to_thread(print)


async def _signal() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_asks_for_something_real_is_told() -> None:
    for program in (_listen, _connect, _read, _thread, _signal):
        with pytest.raises(ForbiddenError):
            simulate(program)
        gc.collect()  # What the refused call had opened already complains of it here, and not in another test.


def test_each_turn_of_the_loop_can_be_stopped_at() -> None:
    seen: list[int] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        loop.at_turn = seen.append
        for _ in range(5):
            await asyncio.sleep(1.0)
        loop.at_turn = None

    simulate(program)
    assert len(seen) >= 5
    assert seen == list(range(seen[0], seen[0] + len(seen)))
