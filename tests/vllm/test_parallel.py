"""A model split over two workers, and one served by two copies: each asked, and then broken."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from mac_runner.backends.vllm import VllmConfig
from mac_runner.errors import BackendError, EngineDeadError
from mac_runner.types import Reply
from tests.patience import until
from tests.sim.requests import request
from tests.vllm.processes import Process, engine_processes, signal_all
from tests.vllm.table import BOUND, THREADS, Table, config, sampling, started, two_cores

REQUESTS = [
    request(f"Case {n % 8}: " + "who did it? " * (5 * (n % 8)), sampling=sampling(n % 8), conversation=f"t-{n}")
    for n in range(BOUND)
]


SPREADINGS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What was seen of an engine from its start until one of its processes was killed."""

    capacity: int
    token_budget: int | None
    alone: list[str]
    together: list[str]
    copies_at_work: int
    after_the_kill: list[Reply | BaseException]
    asked_again: Reply | BaseException
    left: list[Process]


@pytest.fixture(scope="module")
def split(tiny_model: Path) -> Life:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(THREADS, two_cores())
        return life(config(tiny_model, tensor_parallel_size=2), victim="Worker_TP1")


@pytest.fixture(scope="module")
def copied(tiny_model: Path) -> Life:
    return life(config(tiny_model, data_parallel_size=2), victim="EngineCore_DP1")


def life(settings: VllmConfig, *, victim: str) -> Life:
    with started(settings) as table:
        capacity, token_budget = table.backend.capacity, table.backend.token_budget
        alone = [table.ask(one)[0].text for one in REQUESTS[:8]]
        together = [reply.text for reply in table.ask(*REQUESTS)]
        copies_at_work, after_the_kill = table.runner.run(killed(table, victim, settings.data_parallel_size))
    return Life(
        capacity=capacity,
        token_budget=token_budget,
        alone=alone,
        together=together,
        copies_at_work=copies_at_work,
        after_the_kill=after_the_kill[:-1],
        asked_again=after_the_kill[-1],
        left=engine_processes(),
    )


async def killed(table: Table, victim: str, copies: int) -> tuple[int, list[Reply | BaseException]]:
    """How many copies worked at four long requests, how those ended when `victim` was killed, and a request later.

    The engines stand still meanwhile, so that no request can end by itself.
    """
    long = [request(sampling=sampling(n, max_tokens=8000), conversation=f"t-{n}") for n in range(4)]
    processes = engine_processes()
    (lost,) = [process for process in processes if victim in process.command]
    engines = [process for process in processes if "EngineCore" in process.command]
    asking, copies_at_work = list[asyncio.Task[Reply]](), 0
    for _ in range(SPREADINGS_MAX):
        await until(table.is_known_to_rest, "counts that are not of requests before")
        signal_all(engines, signal.SIGSTOP)
        asking = [asyncio.create_task(table.backend.generate(one)) for one in long]
        await until(lambda: table.unfinished() == len(long), "the requests")
        if (copies_at_work := table.copies_at_work()) == copies:
            break
        # vLLM spreads requests by counts that are a moment old; they may still be of those before.
        for task in asking:
            task.cancel()
        signal_all(engines, signal.SIGCONT)
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: table.unfinished() == 0, "their end")
    signal_all([lost], signal.SIGKILL)
    # That a worker is gone is for its engine to notice; the other copy's requests must not end before the engine does.
    signal_all([engine for engine in engines if engine.pid == lost.parent], signal.SIGCONT)
    faults = await asyncio.gather(*asking, return_exceptions=True)
    signal_all(engines, signal.SIGCONT)
    await until(lambda: not engine_processes(), "the engine's end")
    return copies_at_work, [*faults, *await asyncio.gather(table.backend.generate(long[0]), return_exceptions=True)]


def test_budget_is_the_kv_cache_of_all_workers(split: Life, copied: Life) -> None:
    # 2048 bytes for each token of a whole model; a worker of a split one keeps half of each, in as large a cache.
    cache_bytes = int(os.environ["VLLM_CPU_KVCACHE_SPACE"]) << 30

    assert split.capacity == copied.capacity == BOUND
    assert split.token_budget == copied.token_budget == 2 * cache_bytes // 2048


def test_same_seed_gives_the_same_text_however_the_engine_is_spread(split: Life, copied: Life) -> None:
    assert copied.together == copied.alone * 4
    assert split.together == split.alone * 4
    assert split.alone == copied.alone
    assert len(set(split.alone)) == 8


def test_every_copy_gets_its_share_of_the_requests(split: Life, copied: Life) -> None:
    assert (split.copies_at_work, copied.copies_at_work) == (1, 2)


def test_one_process_that_is_killed_takes_the_engine_with_it(split: Life, copied: Life) -> None:
    """Those of the other copy, which vLLM ends in good order, may be told to try again; then there is nobody to ask."""
    for seen in (split, copied):
        assert all(isinstance(fault, BackendError) for fault in seen.after_the_kill), seen.after_the_kill
        assert any(isinstance(fault, EngineDeadError) for fault in seen.after_the_kill)
        assert isinstance(seen.asked_again, EngineDeadError)
        assert seen.left == []
