"""What becomes of a request whose server may hang, in simulated time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from mac_runner.backends.ollama.testing import OLLAMA_ANSWER_S_MAX, OLLAMA_LOOK_INTERVAL_S, watched
from mac_runner.errors import TransientBackendError
from mac_runner.simulation.testing import simulate

T = TypeVar("T")


def played(program: Callable[[], Awaitable[T]]) -> T:
    """What a program comes to within an hour."""

    async def within_an_hour() -> T:
        async with asyncio.timeout(3600.0):
            return await program()

    return simulate(within_an_hour)


def test_slow_answer_is_waited_for_while_the_server_is_there() -> None:
    async def main() -> str:
        looked = asyncio.Semaphore(0)

        async def answer() -> str:
            for _ in range(3):
                await looked.acquire()
            return "at last"

        async def is_there() -> bool:
            looked.release()
            return True

        return await watched(answer(), is_there, host="h")

    assert played(main) == "at last"


def test_answer_that_comes_while_the_server_is_looked_at_counts() -> None:
    async def main() -> str:
        answered = asyncio.Event()

        async def answer() -> str:
            await answered.wait()
            return "after all"

        async def is_there() -> bool:
            answered.set()
            await asyncio.sleep(OLLAMA_ANSWER_S_MAX)
            return False

        return await watched(answer(), is_there, host="h")

    assert played(main) == "after all"


def test_error_of_the_request_is_the_error() -> None:
    async def refuse() -> None:
        raise LookupError("no such thing")

    async def is_there() -> bool:
        raise AssertionError("nobody asked")

    with pytest.raises(LookupError, match="no such thing"):
        played(lambda: watched(refuse(), is_there, host="h"))


@pytest.mark.parametrize("is_given_up", [True, False])
def test_request_that_is_given_up_is_over_by_then(is_given_up: bool) -> None:
    over: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            over.append("over")

    async def is_there() -> bool:
        return is_given_up

    async def main() -> None:
        try:
            async with asyncio.timeout(1.5 * OLLAMA_LOOK_INTERVAL_S):
                await watched(hang(), is_there, host="h")
        finally:
            assert over == ["over"]

    with pytest.raises(TimeoutError if is_given_up else TransientBackendError):
        played(main)


@pytest.mark.ci
def test_fault_that_comes_after_nobody_waits_any_more_is_not_reported_as_a_fault_of_the_program() -> None:
    reported: list[object] = []

    async def fail() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("while it was given up")

    async def is_there() -> bool:
        return True

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
        with suppress(TimeoutError):
            async with asyncio.timeout(1.5 * OLLAMA_LOOK_INTERVAL_S):
                await watched(fail(), is_there, host="h")
        gc.collect()
        await asyncio.sleep(0)

    played(main)

    assert reported == []
