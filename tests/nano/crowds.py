"""Engines of several processes, some as threads of this one, and crowds of requests to compare them with one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from threading import Thread

import psutil

from mac_runner.nano import BaseEngine, EngineConfig, InferenceEngine, SamplingParams, TrainingSample
from mac_runner.nano.testing import (
    Done,
    Joined,
    LockstepEngine,
    LockstepFollower,
    Member,
    Servant,
    make_engine,
    replica_config,
)
from tests.nano.tiny_models import VOCAB_SIZE
from tests.patience import LIMIT_S, wait_for

Make = Callable[..., Servant]
PROMPT = [Random(5).randrange(VOCAB_SIZE) for _ in range(100)]
SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["x", "yy"]}}, "required": ["a"], "additionalProperties": false}'
)

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


def settings(path: Path, replicas: int, **changes: object) -> EngineConfig:
    """A small engine."""
    values: dict[str, object] = {
        "model_path": str(path),
        "data_parallel_size": replicas,
        "data_parallel_mode": "lock_step",
        "num_threads": 1,
        "num_blocks": 60,
        "admission": "preempt",
        "max_batch_size": 8,
        "max_tokens_per_batch": 96,
        **changes,
    }
    return EngineConfig(**values)  # type: ignore[arg-type]


@contextmanager
def as_threads(path: Path, replicas: int = 2, **changes: object) -> Iterator[LockstepEngine]:
    """Replicas as threads of this process: everything is real but the processes."""
    config = settings(path, replicas, **changes)
    with (
        _threads("replica", replicas, LockstepFollower) as members,
        LockstepEngine(config, replica_config(config), members) as engine,
    ):
        yield engine


@contextmanager
def ranks_as_threads(path: Path, make: Make, **changes: object) -> Iterator[InferenceEngine]:
    """Two ranks of one model, the second as a thread of this process."""
    config = settings(path, 1, tensor_parallel_size=2, **changes)
    with _threads("rank", 2, make) as members, InferenceEngine(config, Joined(members)) as engine:
        yield engine


@contextmanager
def _threads(kind: str, size: int, make: Make) -> Iterator[list[Member]]:
    members, threads = list[Member](), list[Thread]()
    for number in range(1, size):
        ours, theirs = socket.socketpair()
        members.append(Member(f"{kind} {number}", Connection(ours.detach())))
        threads.append(Thread(target=_live, args=(Connection(theirs.detach()), number, make)))
        threads[-1].start()
    try:
        yield members
    finally:
        for thread in threads:
            thread.join(LIMIT_S)
    assert [thread for thread in threads if thread.is_alive()] == []


def _live(connection: Connection, number: int, make: Make) -> None:
    """What the process of a replica or a rank does."""
    with closing(connection), suppress(EOFError, ConnectionError):
        first = connection.recv()
        servant = make(number, connection, *first.arguments)
        try:
            connection.send(Done(first.number, servant.joined()))
            servant.run()
        finally:  # A process ends with all it has; a thread does not.
            servant._builder.shutdown()
            if isinstance(servant, LockstepFollower):
                servant._engine.shutdown()


@contextmanager
def as_processes(path: Path, replicas: int = 2, **changes: object) -> Iterator[LockstepEngine]:
    """Replicas as users have them, and no process after the block."""
    with make_engine(settings(path, replicas, **changes)) as engine:
        assert isinstance(engine, LockstepEngine)
        processes = descendants()
        yield engine
    assert_ended(processes)


def descendants() -> list[psutil.Process]:
    """All processes that this one has started, and theirs."""
    return psutil.Process().children(recursive=True)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_ended(processes: list[psutil.Process]) -> None:
    """Wait until all have ended."""
    wait_for(lambda: not any(map(is_alive, processes)), f"the end of {processes}")


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


def assert_same_bits(
    found: dict[tuple[int, int], TrainingSample], expected: dict[tuple[int, int], TrainingSample]
) -> None:
    """Every token, log-probability and version is equal; of aborted samples, as far as both went."""
    assert found.keys() == expected.keys()
    for key, ours in expected.items():
        theirs, num = found[key], len(ours.completion_tokens)
        if "abort" in (ours.finish_reason, theirs.finish_reason):
            num = min(num, len(theirs.completion_tokens))
        else:
            assert (theirs.finish_reason, theirs.text, theirs.stop_reason) == (
                ours.finish_reason,
                ours.text,
                ours.stop_reason,
            )
            assert theirs.version_spans == ours.version_spans
            assert len(theirs.completion_tokens) == num
        assert theirs.prompt_tokens == ours.prompt_tokens
        assert theirs.completion_tokens[:num] == ours.completion_tokens[:num]
        assert theirs.logprobs[:num] == ours.logprobs[:num]
