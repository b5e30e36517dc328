"""What becomes of a request whose server may hang, in simulated time."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from mac_runner.backends.ollama.testing import OLLAMA_ANSWER_S_MAX, OLLAMA_LOOK_INTERVAL_S, watched
from mac_runner.errors import TransientBackendError
from tests.sim.held_time import simulated


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


@simulated
async def test_slow_answer_is_waited_for_while_the_server_is_there() -> None:
    looked = asyncio.Semaphore(0)

    async def answer() -> str:
        for _ in range(3):
            await looked.acquire()
        return "at last"

    async def is_there() -> bool:
        looked.release()
        return True

    async with asyncio.timeout(3600.0):
        assert await watched(answer(), is_there, host="h") == "at last"


@simulated
async def test_answer_that_comes_while_the_server_is_looked_at_counts() -> None:
    answered = asyncio.Event()

    async def answer() -> str:
        await answered.wait()
        return "after all"

    async def is_there() -> bool:
        answered.set()
        await asyncio.sleep(OLLAMA_ANSWER_S_MAX)
        return False

    async with asyncio.timeout(3600.0):
        assert await watched(answer(), is_there, host="h") == "after all"


@simulated
async def test_error_of_the_request_is_the_error() -> None:
    async def refuse() -> None:
        raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await watched(refuse(), no, host="h")


@pytest.mark.parametrize("is_given_up", [True, False])
@simulated
async def test_request_that_is_given_up_is_over_by_then(is_given_up: bool) -> None:
    over: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.append("over")

    with pytest.raises(TimeoutError if is_given_up else TransientBackendError):
        async with asyncio.timeout(1.5 * OLLAMA_LOOK_INTERVAL_S):
            await watched(hang(), yes if is_given_up else no, host="h")
    assert over == ["over"]


@pytest.mark.ci
@simulated
async def test_fault_that_comes_after_nobody_waits_any_more_is_not_reported_as_a_fault_of_the_program() -> None:
    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while it was given up")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
    with suppress(TimeoutError):
        async with asyncio.timeout(1.5 * OLLAMA_LOOK_INTERVAL_S):
            await watched(fail(), yes, host="h")
    gc.collect()
    await asyncio.sleep(0)

    assert reported == []
