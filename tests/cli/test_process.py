"""What a run asks of Python: a loop that ends, few threads for what blocks, and a collector that seldom runs."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from mac_runner.runs import event_loop
from mac_runner.runs.testing import COLLECTION_OBJECTS, rare_collections, run
from tests.patience import LIMIT_S


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.self = self


def test_collector_is_as_before_afterwards() -> None:
    before = gc.get_threshold()
    with rare_collections():
        during, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0

    assert during == (COLLECTION_OBJECTS, *before[1:])
    assert is_frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_cycles_made_meanwhile_are_still_found() -> None:
    with rare_collections():
        knots = [weakref.ref(Knot()) for _ in range(4 * COLLECTION_OBJECTS)]
        alive = sum(knot() is not None for knot in knots)

    assert alive <= 2 * COLLECTION_OBJECTS


def test_loop_ends_while_a_call_still_blocks() -> None:
    go_on, begun = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        go_on.wait(LIMIT_S)

    async def program() -> str:
        asyncio.get_running_loop().run_in_executor(None, block)
        await asyncio.to_thread(begun.wait, LIMIT_S)
        return "done"

    assert run(program()) == "done"
    assert not go_on.is_set()
    go_on.set()


def test_calls_that_block_share_few_threads_and_bring_back_what_they_return(monkeypatch: pytest.MonkeyPatch) -> None:
    assert event_loop.BLOCKING_CALLS_MAX > 3
    monkeypatch.setattr(event_loop, "BLOCKING_CALLS_MAX", 3)

    def where(n: int) -> tuple[int, str]:
        return n, threading.current_thread().name

    async def program() -> list[tuple[int, str]]:
        return await asyncio.gather(*(asyncio.to_thread(where, n) for n in range(50)))

    found = run(program())

    assert [n for n, _ in found] == [*range(50)]
    assert len({name for _, name in found}) <= 3


def test_call_that_raises_raises_where_it_is_awaited() -> None:
    async def program() -> None:
        await asyncio.to_thread(int, "x")

    with pytest.raises(ValueError, match="invalid literal"):
        run(program())
