"""A pull that goes wrong, in simulated time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from ollama import ProgressResponse

from mac_runner.backends.ollama.testing import OLLAMA_PULL_STALL_S_MAX, follow_pull
from mac_runner.backends.testing import Redactor
from mac_runner.errors import EngineDeadError
from mac_runner.simulation.testing import SimulatedClock, simulate

UNKEYED = Redactor(None)


async def pull(*steps: float, is_whole: bool = False) -> AsyncIterator[ProgressResponse]:
    """Progress that comes after each of these delays; a whole one succeeds in the end."""
    for number, delay_s in enumerate(steps):
        await asyncio.sleep(delay_s)
        yield ProgressResponse(status="pulling aa11", total=100, completed=number)
    if is_whole:
        yield ProgressResponse(status="success")


def follow(progress: AsyncIterator[ProgressResponse]) -> tuple[list[str], float]:
    """What is told of a pull, and how long it took."""
    lines: list[str] = []

    async def program() -> float:
        await follow_pull("some", progress, host="http://h", redactor=UNKEYED, clock=SimulatedClock(), say=lines.append)
        return asyncio.get_running_loop().time()

    return lines, simulate(program)


def test_pull_may_take_as_long_as_it_goes_on() -> None:
    lines, took_s = follow(pull(*[OLLAMA_PULL_STALL_S_MAX - 1] * 100, is_whole=True))

    assert took_s > 50 * OLLAMA_PULL_STALL_S_MAX
    assert "aa11, 0%" in lines[0]
    assert lines[-1] == "pulling some: done"


def test_pull_that_stalls_is_given_up() -> None:
    with pytest.raises(EngineDeadError, match="nothing for 300 s"):
        follow(pull(1.0, OLLAMA_PULL_STALL_S_MAX + 1, is_whole=True))


def test_pull_that_ends_too_early_has_failed() -> None:
    with pytest.raises(EngineDeadError, match="before it succeeded"):
        follow(pull(1.0))
