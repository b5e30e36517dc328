"""How an engine starts and ends when it is given up or will not go; a stub stands in its place."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mac_runner.backends.vllm import VllmConfig, backend
from mac_runner.backends.vllm.testing import EngineLog, Release, VllmBackend
from tests.kit import StridingClock
from tests.patience import LIMIT_S
from tests.sim.held_time import real


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VllmBackend]:
    """Makes backends that take `load` for the loading of the model, and `shutdown` for the end of the engine."""
    arguments = frozenset({*VllmConfig.model_fields, "max_num_seqs", "disable_log_stats"})
    monkeypatch.setattr(backend, "find_release", lambda: Release(version="0", arguments=arguments))

    def make(*, load: Callable[[], object], shutdown: Callable[[], object]) -> VllmBackend:
        made = VllmBackend(name="m", config=VllmConfig(model="/m"), traces=False, clock=StridingClock(0.0), say=print)
        running: Any = SimpleNamespace(
            engine=SimpleNamespace(shutdown=shutdown),
            renderers={None: SimpleNamespace(shape=SimpleNamespace(opens_thought=False))},
        )

        def launch(_log: EngineLog) -> None:
            load()
            made._running = running

        monkeypatch.setattr(made, "_launch", launch)
        return made

    return make


@real
async def test_start_that_is_cancelled_again_and_again_leaves_no_engine_that_nobody_owns(
    engine: Callable[..., VllmBackend],
) -> None:
    before = {**os.environ}
    loading, loaded, ends = threading.Event(), threading.Event(), list[str]()

    def load() -> None:
        loading.set()
        loaded.wait(LIMIT_S)

    given_up = engine(load=load, shutdown=lambda: ends.append("ended"))
    start = asyncio.create_task(given_up.start())
    await asyncio.to_thread(loading.wait, LIMIT_S)
    for _ in range(5):
        start.cancel()
        for _ in range(5):  # More turns than a cancellation takes to arrive.
            await asyncio.sleep(0)
    assert not start.done()
    loaded.set()
    with pytest.raises(asyncio.CancelledError):
        await start
    await given_up.close()

    assert ends == ["ended"]
    assert {**os.environ} == before


@pytest.mark.ci
@real
async def test_engine_that_will_not_end_leaves_nothing_in_this_process(engine: Callable[..., VllmBackend]) -> None:
    before = {**os.environ}
    ending, ended = threading.Event(), threading.Event()

    def linger() -> None:
        ending.set()
        ended.wait(LIMIT_S)

    def refuse() -> None:
        raise RuntimeError("no")

    rude, slow = (engine(load=lambda: None, shutdown=shutdown) for shutdown in (refuse, linger))
    await rude.start()
    await slow.start()
    with pytest.raises(RuntimeError, match="no"):
        await rude.close()
    closing = asyncio.create_task(slow.close())
    await asyncio.to_thread(ending.wait, LIMIT_S)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    ended.set()

    assert {**os.environ} == before
