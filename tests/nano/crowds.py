"""Engines of one process and of several, some as threads of this one, and crowds of requests to compare them with."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pytest
import torch

from mac_runner.nano import AsyncEngine, BaseEngine, EngineConfig, InferenceEngine, SamplingParams, TrainingSample
from mac_runner.nano.testing import (
    Joined,
    Member,
    Rank,
    Replica,
    ReplicatedEngine,
    Worker,
    can_pack,
    make_engine,
    serve,
)
from tests.nano.tiny_models import VOCAB_SIZE
from tests.patience import LIMIT_S, descendants, wait_for, wait_for_ends
from tests.sim.held_steps import HeldSteps

Make = Callable[..., Worker]
PROMPT = [Random(5).randrange(VOCAB_SIZE) for _ in range(100)]
SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": false}'
)

PACKS = can_pack(torch.float32, torch.device("cpu"))
"""Without oneDNN no bits are promised."""
needs_packing = pytest.mark.skipif(not PACKS, reason="without oneDNN no bits are promised")

KINDS: tuple[dict[str, object], ...] = (
    {},
    {"temperature": 0.0},
    {"seed": 3, "top_p": 0.9, "top_k": 20},
    {"stop": ("a", "bc"), "presence_penalty": 0.5},
    {"stop_token_ids": frozenset(range(0, VOCAB_SIZE, 9))},
    {"json_schema": SCHEMA},
    {"choices": ("yes", "no"), "ignore_eos": False},
    {"top_logprobs": 2, "repetition_penalty": 1.2},
)


def settings(path: Path, **changes: Any) -> EngineConfig:
    """A small engine."""
    small = {"num_threads": 1, "num_blocks": 200, "max_batch_size": 8, "max_tokens_per_batch": 96}
    return EngineConfig(**{"model_path": str(path), **small, **changes})


@contextmanager
def alone(path: Path, **changes: Any) -> Iterator[InferenceEngine]:
    """One process."""
    with InferenceEngine(settings(path, **changes)) as engine:
        yield engine


@contextmanager
def replicas(path: Path, **changes: Any) -> Iterator[ReplicatedEngine]:
    """Independent replicas as threads of this process: everything is real but the processes."""
    config = settings(path, **{"data_parallel_size": 2, **changes})
    numbers = range(config.data_parallel_size)
    with _threads("replica", numbers, Replica) as members, ReplicatedEngine(config, members) as engine:
        engine.replica_stats()  # Whoever answers has begun all its threads.
        yield engine


def lock_step(path: Path, **changes: Any) -> AbstractContextManager[ReplicatedEngine]:
    """Replicas in lock step as threads of this process."""
    return replicas(path, **{"data_parallel_mode": "lock_step", **changes})


@contextmanager
def ranks_as_threads(path: Path, make: Make = Rank, **changes: Any) -> Iterator[InferenceEngine]:
    """Two ranks of one model, the second as a thread of this process."""
    config = settings(path, tensor_parallel_size=2, **changes)
    with _threads("rank", [1], make) as members, InferenceEngine(config, Joined(members)) as engine:
        yield engine


@contextmanager
def processes(path: Path, **changes: Any) -> Iterator[Any]:
    """An engine of several processes as users have it; it leaves none of them, and no thread of torch's groups."""
    before, num_threads = descendants(), _group_threads()
    with make_engine(settings(path, **changes)) as engine:
        started = [process for process in descendants() if process not in before]
        yield engine
    wait_for_ends(started)
    # The system lists a thread for a moment longer than it can be waited for.
    wait_for(lambda: _group_threads() <= num_threads, "the end of the threads of torch's groups")


def forbid_farewell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that start from now on end with 7 if they leave through the interpreter."""
    (folder / "sitecustomize.py").write_text("import atexit, os\natexit.register(os._exit, 7)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))


def _group_threads() -> int:
    """How many threads work for groups of torch.distributed in this process."""
    found = 0
    for thread in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # It has ended.
            found += "gloo" in thread.read_text()
    return found


@contextmanager
def _threads(kind: str, numbers: Iterable[int], make: Make) -> Iterator[list[Member]]:
    def live(connection: Connection, number: int) -> None:
        with closing(connection):
            serve(connection, partial(make, number))

    members, threads = list[Member](), list[Thread]()
    for number in numbers:
        ours, theirs = socket.socketpair()
        members.append(Member(f"{kind} {number}", Connection(ours.detach())))
        threads.append(Thread(target=live, args=(Connection(theirs.detach()), number)))
        threads[-1].start()
    try:
        yield members
    finally:
        for thread in threads:
            thread.join(LIMIT_S)
    assert [thread for thread in threads if thread.is_alive()] == []


def lose(engine: ReplicatedEngine, number: int) -> None:
    """End a replica, as its host's power does."""
    with socket.socket(fileno=os.dup(engine._replicas[number].member.connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def in_a_crowd(engine: BaseEngine, seed: int, count: int) -> dict[tuple[int, int], TrainingSample]:
    """`count` mixed requests that come and go between steps; their samples by request and index.

    They have prompts of all lengths, some of which begin alike, several samples, stops, schemas, choices, penalties and
    seeds or none. Some are aborted at once, some later.
    """
    chance, found, numbers = Random(seed), list[TrainingSample](), dict[int, int]()
    for index in range(count):
        prompt = [chance.randrange(VOCAB_SIZE) for _ in range(chance.randrange(1, 120))]
        if chance.random() < 0.3:
            prompt = PROMPT[: chance.randrange(1, 100)] + prompt[:20]
        number = engine.add_request(
            prompt, _mixed(chance), chance.choice((1, 1, 1, 2, 4)), stream=chance.random() < 0.2
        )
        numbers[number] = index
        if chance.random() < 0.1:
            found += engine.abort(chance.choice((number, number - 3)))
        for _ in range(chance.randrange(3)):
            found += engine.step()
    found += finish(engine)
    return {(numbers[sample.request_id], sample.sample_index): sample for sample in found}


def finish(engine: BaseEngine) -> list[TrainingSample]:
    """Step until nothing is pending."""
    samples = list[TrainingSample]()
    while engine.has_pending():
        samples += engine.step()
    return samples


def _mixed(chance: Random) -> SamplingParams:
    common = {"max_tokens": chance.randrange(1, 15), "ignore_eos": True}
    return SamplingParams(**{**common, **chance.choice(KINDS)})  # type: ignore[arg-type]


def told(sample: TrainingSample) -> object:
    """All that a sample says of the model's numbers and of how they came about."""
    numbers = sample.completion_tokens, sample.logprobs, sample.version_spans
    return numbers, sample.finish_reason, sample.stop_reason, sample.text


def bits(samples: Iterable[TrainingSample]) -> dict[tuple[int, int], object]:
    """What samples tell, by request and index."""
    return {(each.request_id, each.sample_index): told(each) for each in samples}


def begin_streams(engine: BaseEngine, count: int, steps: HeldSteps, params: SamplingParams) -> list[int]:
    """Add long requests, let them begin together, and wait until each of them runs; their numbers."""
    steps.hold(after=0)
    numbers = [engine.add_request([number] * 5, params, stream=True) for number in range(count)]
    wait_for(lambda: engine.stats().num_waiting == count, "all requests")
    steps.hold()
    coming = set(numbers)
    while coming:
        coming -= {delta.request_id for delta in engine.step_deltas()}
    return numbers


def assert_same_bits(
    found: dict[tuple[int, int], TrainingSample], expected: dict[tuple[int, int], TrainingSample]
) -> None:
    """Every token, log-probability and version is equal; of aborted samples, as far as both went."""
    assert found.keys() == expected.keys()
    for key, ours in expected.items():
        theirs = found[key]
        num = min(len(ours.completion_tokens), len(theirs.completion_tokens))
        assert theirs.prompt_tokens == ours.prompt_tokens
        assert theirs.completion_tokens[:num] == ours.completion_tokens[:num]
        assert theirs.logprobs[:num] == ours.logprobs[:num]
        if "abort" not in (ours.finish_reason, theirs.finish_reason):
            assert told(theirs) == told(ours)


@asynccontextmanager
async def started(path: Path, **settings: Any) -> AsyncIterator[AsyncEngine]:
    """An engine for many callers, for the time of the block."""
    engine = AsyncEngine(EngineConfig(model_path=str(path), num_threads=1, **settings))
    try:
        await engine.start()
        yield engine
    finally:
        await engine.shutdown()


def started_with(**settings: object) -> pytest.MarkDecorator:
    """An engine of other settings for a test."""
    return pytest.mark.parametrize("engine", [settings], indirect=True, ids=[""])
