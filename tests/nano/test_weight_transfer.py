"""Weights over torch.distributed: the same bits as an update in memory, and a fault installs nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch

from mac_runner.nano import (
    AsyncEngine,
    SamplingParams,
    TrainingSample,
    WeightSender,
    async_engine,
    errors,
    weight_transfer,
)
from mac_runner.nano.testing import EMBEDDINGS, HEAD, TransferGroup, alongside, parse_address, receive
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S, until, wait_for
from tests.sim.held_steps import HeldSteps

PARAMS = SamplingParams(temperature=0.8, max_tokens=12, seed=3, ignore_eos=True)
LONG = SamplingParams(max_tokens=400, ignore_eos=True)
NORM = "model.norm.weight"


def sender(receivers: int = 1) -> WeightSender:
    return WeightSender("127.0.0.1:0", receivers, timeout_s=LIMIT_S)


async def send(sender: WeightSender, weights: Mapping[str, torch.Tensor], version: int | None = None) -> None:
    """Send as a trainer does, beside the engines."""
    await asyncio.to_thread(sender.send, weights, version)


def take(sender: WeightSender) -> tuple[dict[str, torch.Tensor], int | None]:
    """Receive as an engine does that keeps what comes."""
    return receive(sender.address, lambda *_: None, dict[str, torch.Tensor])


def has_come(sender: WeightSender) -> bool:
    """Whether an engine waits that the sender has not looked at."""
    return bool(wait([sender._listener], 0))


async def sample(engine: AsyncEngine) -> TrainingSample:
    return replace((await engine.generate([1, 2, 3], PARAMS))[0], request_id=0)


class Trainer:
    """The process of trainers, started once for all tests."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.nano.trainer"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    async def begin(self, path: Path, fault: str, *versions: int) -> str:
        """A further trainer; its address."""
        self.go(f"{path} {fault} {' '.join(map(str, versions))}")
        return await self.line()

    def go(self, text: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    async def line(self) -> str:
        assert self.process.stdout is not None
        return (await asyncio.to_thread(self.process.stdout.readline)).strip()


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    made = Trainer()
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


async def test_received_weights_compute_the_bits_of_a_blocking_update_while_requests_run(
    path: Path, trainer: Trainer, steps: HeldSteps, engine: AsyncEngine, other: AsyncEngine
) -> None:
    address = await trainer.begin(path, "none", 7, 8)
    steps.hold()
    running = await engine.submit([1, 2], LONG)
    await anext(running)
    update = asyncio.create_task(engine.receive_weights(address))
    trainer.go()
    assert (await update, await trainer.line()) == (7, "taken")
    steps.go()
    last = [delta.sample async for delta in running if delta.sample is not None][-1]
    assert [span.version for span in last.version_spans] == [0, 7]

    await other.update_weights(random_state_dict(path, seed=7), version=7)
    assert await sample(engine) == await sample(other)
    trainer.go()
    assert (await engine.receive_weights(address, version=8), await trainer.line()) == (8, "taken")


def test_any_floating_point_dtype_and_layout_in_memory_arrives_bit_by_bit(path: Path) -> None:
    weights = random_state_dict(path, seed=1)
    for number, (name, tensor) in enumerate(sorted(weights.items())):
        kinds = (torch.bfloat16, torch.float64, torch.float16, torch.float32)
        weights[name] = tensor.to(kinds[number % len(kinds)])
        if tensor.dim() == 2 and number % 3 == 0:
            weights[name] = weights[name].t().contiguous().t()
    weights["scalar"], weights["empty"] = torch.tensor(2.5), torch.zeros(0, 4)

    with sender() as source, ThreadPoolExecutor(1) as threads:
        threads.submit(source.send, weights, 3)
        received, version = take(source)

    assert version == 3
    assert received.keys() == weights.keys()
    for name, tensor in weights.items():
        assert (received[name].dtype, received[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(received[name], tensor), name


async def test_weights_that_do_not_fit_are_refused_on_both_sides_before_the_first_tensor(
    path: Path, engine: AsyncEngine
) -> None:
    good = random_state_dict(path, seed=1)
    wrong: list[tuple[type[errors.NanoError], str, dict[str, torch.Tensor], int]] = [
        (errors.MissingTensorError, NORM, {name: tensor for name, tensor in good.items() if name != NORM}, 5),
        (errors.UnexpectedTensorError, "other", {**good, "other": torch.zeros(1)}, 5),
        (errors.WrongShapeError, NORM, {**good, NORM: torch.ones(3)}, 5),
        (errors.WrongDtypeError, NORM, {**good, NORM: good[NORM].int()}, 5),
        (errors.UnexpectedTensorError, HEAD, {**good, HEAD: good[EMBEDDINGS] + 1}, 5),  # The tied output layer differs.
        (errors.StaleVersionError, "version 4", good, 4),
        (errors.StaleVersionError, "version 3", good, 3),
        (errors.BroadcastError, "version 6 is expected", good, 5),
    ]
    await engine.update_weights(random_state_dict(path, seed=2), version=4)
    before = await sample(engine)
    with sender() as source:
        for error, words, weights, version in wrong:
            expected = 6 if error is errors.BroadcastError or version == 3 else None
            update = engine.receive_weights(source.address, version=expected)
            met = await asyncio.gather(update, send(source, weights, version), return_exceptions=True)
            assert [type(each) for each in met] == [error, error], met
            assert all(words in str(each) for each in met), met
            assert await sample(engine) == before
        assert (await asyncio.gather(engine.receive_weights(source.address), send(source, good)))[0] == 5


def test_error_of_torch_says_first_that_nothing_was_installed() -> None:
    """A reply that quotes the error cuts it at its end."""

    def fail(_group: object) -> None:
        raise RuntimeError("gloo says much. " * 100)

    with pytest.raises(errors.BroadcastError, match=r"^no new weights"):
        alongside(fail, TransferGroup(torch.device("cpu"), 60.0), [])


async def test_second_update_or_send_at_once_is_refused_and_the_first_goes_on(path: Path, engine: AsyncEngine) -> None:
    good = random_state_dict(path, seed=1)
    with sender() as source:
        sending = asyncio.create_task(send(source, good))
        await until(source._sending.locked, "the first to send")
        with pytest.raises(errors.UpdateInProgressError):
            source.send(good)
        first = asyncio.create_task(engine.receive_weights(source.address))
        await asyncio.sleep(0)
        with pytest.raises(errors.UpdateInProgressError):
            await engine.receive_weights(source.address)
        with pytest.raises(errors.UpdateInProgressError):
            await engine.update_weights(good)
        assert await first == 1
        await sending


async def test_trainer_killed_before_or_in_the_middle_installs_nothing_and_afterwards_all(
    path: Path, trainer: Trainer, engine: AsyncEngine
) -> None:
    before = await sample(engine)
    for fault in ("before", "middle"):
        update = asyncio.create_task(engine.receive_weights(await trainer.begin(path, fault, 5)))
        trainer.go()
        with pytest.raises(errors.BroadcastError, match="no new weights"):
            await update
        assert await sample(engine) == before
    update = asyncio.create_task(engine.receive_weights(await trainer.begin(path, "after", 5)))
    trainer.go()
    assert (await update, await trainer.line()) == (5, "taken")
    assert (await sample(engine)).weight_version == 5


async def test_two_engines_install_what_one_trainer_sends_or_neither_does(
    path: Path, engine: AsyncEngine, other: AsyncEngine
) -> None:
    good = random_state_dict(path, seed=1)
    await other.update_weights(good, version=9)
    before = await sample(engine)
    with sender(receivers=2) as source:
        both = [engine.receive_weights(source.address), other.receive_weights(source.address)]
        met = await asyncio.gather(*both, send(source, good, 5), return_exceptions=True)
        assert [type(each) for each in met] == [
            errors.BroadcastError,
            errors.StaleVersionError,
            errors.StaleVersionError,
        ]
        assert await sample(engine) == before

        both = [engine.receive_weights(source.address), other.receive_weights(source.address)]
        assert await asyncio.gather(*both, send(source, good, 10)) == [10, 10, None]
        assert await sample(engine) == await sample(other)


@pytest.mark.parametrize("engine", [{"tensor_parallel_size": 2}, {"data_parallel_size": 2}], indirect=True)
async def test_engine_of_several_processes_installs_on_all_of_them(path: Path, engine: AsyncEngine) -> None:
    weights = random_state_dict(path, seed=7)
    with sender() as source:
        await asyncio.gather(engine.receive_weights(source.address), send(source, weights, 7))
    received = await asyncio.gather(*[sample(engine) for _ in range(4)])
    await engine.update_weights(weights, version=8)
    updated = await asyncio.gather(*[sample(engine) for _ in range(4)])
    for one, other in zip(received, updated, strict=True):
        assert (one.weight_version, other.weight_version) == (7, 8)
        assert (one.completion_tokens, one.logprobs) == (other.completion_tokens, other.logprobs)


async def test_update_that_is_cancelled_or_whose_engine_shuts_down_leaves_the_trainer_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch, engine: AsyncEngine, other: AsyncEngine
) -> None:
    """Once the engine's thread has heard of it, and has hung up."""
    good, left = random_state_dict(path, seed=1), list[str]()

    def noting(address: str, *more: Any, **named: Any) -> Any:
        try:
            return receive(address, *more, **named)
        finally:
            left.append(address)

    monkeypatch.setattr(async_engine, "receive", noting)
    with sender() as source:
        update = asyncio.create_task(engine.receive_weights(source.address))
        await until(lambda: has_come(source), "the engine")
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        await until(lambda: left, "the engine's leave")
        # It is gone, and does not count as a receiver.
        _, version = await asyncio.gather(send(source, good, 3), engine.receive_weights(source.address))
        assert version == 3

        update = asyncio.create_task(other.receive_weights(source.address))
        await until(lambda: has_come(source), "the other engine")
        await other.shutdown()
        with pytest.raises((errors.BroadcastError, errors.EngineStoppedError)):
            await update
        await until(lambda: len(left) == 3, "the other engine's leave")
        _, version = await asyncio.gather(send(source, good, 4), engine.receive_weights(source.address))
        assert version == 4


async def test_trainer_does_not_wait_for_engines_that_the_run_does_not_have(
    path: Path, engine: AsyncEngine, other: AsyncEngine
) -> None:
    engines, weights = (engine, other), random_state_dict(path, seed=1)
    before = await sample(engine)
    for receivers, number in ((2, 1), (1, 2)):
        with sender(receivers) as source:
            coming = [each.receive_weights(source.address, engines=number) for each in engines[:number]]
            met = await asyncio.gather(send(source, weights, 5), *coming, return_exceptions=True)
            text = f"receivers is {receivers}, but the number of engines that are up is {number}"
            assert all(type(each) is errors.BroadcastError and text in str(each) for each in met), met
    with sender(receivers=2) as source:
        assert await sample(engine) == before
        coming = [each.receive_weights(source.address, engines=2) for each in engines]
        assert await asyncio.gather(*coming, send(source, weights, 5)) == [5, 5, None]


def test_engine_that_ends_at_any_stage_is_an_error_at_the_trainer_and_at_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that waits for one that never comes to the group, which is an error already, is soon at its end."""
    weights = random_state_dict(path, seed=1)
    hello, fits, prepared = (b'{"protocol": 1}', b'{"fits": true}', b'{"prepared": true}')
    for says in ([b"GET / HTTP/1.1"], [hello, b"nonsense"], [hello, fits], [hello, fits, prepared]):
        if is_ours := says[0] == hello:
            monkeypatch.setattr(weight_transfer, "CARRY_S_MAX", 1.0)
        with sender(receivers=2) as source, ThreadPoolExecutor(2) as threads:
            sides = threads.submit(take, source), threads.submit(source.send, weights, 2)
            with socket.create_connection(parse_address(source.address)) as peer:
                for message in says:
                    peer.sendall(len(message).to_bytes(4, "big") + message)
                    if message is not says[-1]:
                        peer.recv(1)
            if not is_ours:  # It never counted; another engine takes its place.
                take(source)
            met = [side.exception() for side in sides]
            assert [type(each) for each in met] == [errors.BroadcastError if is_ours else type(None)] * 2, (says, met)
            wait_for(lambda: all(each.name != "nano-transfer" for each in threading.enumerate()), "the thread")


@pytest.mark.parametrize("side", ["silent trainer", "no trainer", "no engine"])
def test_silent_or_absent_side_is_an_error_after_the_timeout(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait passes at once."""

    def pass_by(_: object, timeout_s: float) -> list[object]:
        waited_s.append(timeout_s)
        return []

    def ask(where: socket.socket) -> None:
        receive(f"127.0.0.1:{where.getsockname()[1]}", lambda *_: None, dict, timeout_s=20.0, cancelled=cancelled)

    waited_s, cancelled = list[float](), threading.Event()
    monkeypatch.setattr(weight_transfer, "wait", pass_by)
    monkeypatch.setattr(cancelled, "wait", waited_s.append)
    with socket.socket() as where, WeightSender("127.0.0.1:0", timeout_s=20.0) as source:
        where.bind(("127.0.0.1", 0))
        if side == "silent trainer":
            where.listen()
            with pytest.raises(errors.BroadcastError, match="nothing for 20 s"):
                ask(where)
        elif side == "no trainer":
            with pytest.raises(errors.BroadcastError, match="no trainer at"):
                ask(where)
        else:
            with pytest.raises(errors.BroadcastError, match="0 of 1 engines came"):
                source.send({"one": torch.ones(1)})

    assert sum(waited_s) == pytest.approx(20.0, abs=0.1)


def test_wrong_settings_of_a_sender_are_refused() -> None:
    for address in ("nowhere", ":29600", "host:", "host:99999", "host:one"):
        with pytest.raises(errors.ConfigError, match="of a trainer"):
            WeightSender(address)
    with pytest.raises(errors.ConfigError, match="receivers = 0"):
        WeightSender("127.0.0.1:0", 0)
    if not torch.cuda.is_available():
        with pytest.raises(errors.ConfigError, match="no GPU"):
            WeightSender("127.0.0.1:0", backend="nccl")
    assert parse_address("[::1]:29600") == ("::1", 29600)
