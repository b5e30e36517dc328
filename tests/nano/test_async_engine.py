"""The engine for many callers: each gets its own, whoever leaves is forgotten, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from mac_runner.nano import (
    AsyncEngine,
    EngineConfig,
    RequestStream,
    SamplingParams,
    TrainingSample,
    errors,
    read_state_dict,
)
from mac_runner.nano.testing import Grammar, GrammarCompiler
from tests.nano.crowds import started_with
from tests.nano.tiny_models import random_state_dict
from tests.patience import LIMIT_S
from tests.sim.held_steps import HeldSteps

PARAMS = SamplingParams(temperature=0.8, max_tokens=12, seed=3, ignore_eos=True)
LONG = SamplingParams(max_tokens=300, ignore_eos=True)


async def begun(engine: AsyncEngine, params: SamplingParams, count: int = 3) -> RequestStream:
    """A request that has said some tokens; so whatever was submitted before it is running too."""
    handle = await engine.submit([1, 2], params)
    for _ in range(count):
        await anext(handle)
    return handle


async def last(handle: RequestStream) -> TrainingSample:
    """What a request has come to."""
    sample = [delta.sample async for delta in handle][-1]
    assert sample is not None
    return sample


@started_with(max_batch_size=8)
async def test_callers_at_once_get_what_each_would_get_alone(engine: AsyncEngine) -> None:
    prompts = [[index] * (index + 1) for index in range(20)]
    alone = [await engine.generate(prompt, PARAMS, 2) for prompt in prompts]
    together = await asyncio.gather(*(engine.generate(prompt, PARAMS, 2) for prompt in prompts))
    assert [[sample.logprobs for sample in samples] for samples in together] == [
        [sample.logprobs for sample in samples] for samples in alone
    ]
    assert [[sample.sample_index for sample in samples] for samples in together] == [[0, 1]] * 20


async def test_stream_brings_every_token_and_then_the_sample(engine: AsyncEngine) -> None:
    deltas = [delta async for delta in engine.stream("abc", PARAMS)]
    sample = deltas[-1].sample
    assert sample is not None
    assert len(deltas) == 12
    assert "".join(delta.text for delta in deltas) == sample.text


async def test_whoever_leaves_is_forgotten(steps: HeldSteps, engine: AsyncEngine) -> None:
    """A closed iteration, a cancelled handle, a cancelled task: in each case the engine stops working for it."""
    steps.hold()
    stream = engine.stream([1] * 5, LONG)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]
    steps.hold()
    handle = await engine.submit([2] * 5, LONG)
    async for _ in handle:
        break
    handle.cancel()
    assert [delta async for delta in handle] == []
    steps.hold()
    task = asyncio.create_task(engine.generate([3] * 5, LONG))
    while not (await engine.stats()).num_running:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    stats = await engine.stats()
    assert (stats.num_running, stats.num_waiting) == (0, 0)
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_blocks


async def test_what_goes_wrong_with_a_request_is_told_who_asked_and_the_others_go_on(
    engine: AsyncEngine, path: Path
) -> None:
    running = await begun(engine, LONG)
    with pytest.raises(errors.InvalidRequestError):
        await engine.submit([], PARAMS)
    with pytest.raises(errors.ConstraintError):
        await engine.submit([1], SamplingParams(json_schema='{"type": "nothing"}'))
    assert len((await last(running)).completion_tokens) == 300

    await engine.update_weights({name: tensor * 1e30 for name, tensor in read_state_dict(path).items()})
    with pytest.raises(errors.NonFiniteLogitsError):
        await engine.generate([1, 2], PARAMS, 3)
    await engine.update_weights(read_state_dict(path))
    assert len(await engine.generate([1, 2], PARAMS)) == 1


async def test_nobody_waits_while_a_constraint_is_compiled(
    monkeypatch: pytest.MonkeyPatch, engine: AsyncEngine
) -> None:
    """Neither the event loop nor the steps of others; a compilation that lasts as long as one likes is made here."""
    may_go_on = threading.Event()
    compile_really = GrammarCompiler.compile

    def compile_slowly(self: GrammarCompiler, params: SamplingParams) -> Grammar | None:
        assert not params.is_constrained or may_go_on.wait(LIMIT_S)
        return compile_really(self, params)

    monkeypatch.setattr(GrammarCompiler, "compile", compile_slowly)
    constrained = asyncio.create_task(engine.generate([1], SamplingParams(choices=("yes", "no"))))
    others = await asyncio.gather(*(engine.generate([index], PARAMS) for index in range(3)))
    assert [len(samples) for samples in others] == [1, 1, 1]
    assert not constrained.done()
    may_go_on.set()
    assert (await constrained)[0].text in ("yes", "no")


async def test_weights_change_while_requests_run(path: Path, steps: HeldSteps, engine: AsyncEngine) -> None:
    steps.hold()
    running = await begun(engine, LONG)
    assert await engine.update_weights(random_state_dict(path, seed=1), version=4) == 4
    with pytest.raises(errors.WrongShapeError):
        await engine.update_weights({name: tensor[:1] for name, tensor in read_state_dict(path).items()})
    steps.go()
    assert [span.version for span in (await last(running)).version_spans] == [0, 4]


async def test_second_update_at_once_or_of_an_older_version_is_refused_and_the_first_is_installed(
    path: Path, engine: AsyncEngine
) -> None:
    weights = random_state_dict(path, seed=1)
    first = asyncio.create_task(engine.update_weights(weights, version=4))
    await asyncio.sleep(0)
    with pytest.raises(errors.UpdateInProgressError):
        await engine.update_weights(weights, version=5)
    assert await first == 4
    with pytest.raises(errors.StaleVersionError):
        await engine.update_weights(weights, version=4)
    assert await engine.update_weights(weights) == 5


async def test_pause_waits_for_those_that_run(engine: AsyncEngine) -> None:
    running = await begun(engine, PARAMS)
    await engine.pause("wait")
    waiting = asyncio.create_task(engine.generate([1, 2], PARAMS))
    finished = await last(running)
    assert len(finished.completion_tokens) == 12
    assert (await engine.stats()).num_running == 0
    await engine.sleep()
    assert not waiting.done()
    await engine.wake()
    assert (await waiting)[0].logprobs == finished.logprobs


async def test_pause_that_aborts_hands_over_what_there_is(steps: HeldSteps, engine: AsyncEngine) -> None:
    steps.hold()
    running = await begun(engine, LONG)
    await engine.pause("abort")
    sample = await last(running)
    assert (sample.finish_reason, len(sample.completion_tokens) >= 3) == ("abort", True)
    await engine.resume()


async def test_shutdown_tells_everybody_who_waits(steps: HeldSteps, engine: AsyncEngine) -> None:
    steps.hold()
    running = asyncio.create_task(engine.generate([1, 2], LONG))
    handle = await engine.submit([1], LONG, stream=False)
    await engine.shutdown()
    with pytest.raises(errors.EngineStoppedError, match="shut down"):
        await running
    with pytest.raises(errors.EngineStoppedError, match="shut down"):
        await anext(handle)
    with pytest.raises(errors.EngineStoppedError, match="shut down"):
        await engine.generate([1], PARAMS)


async def test_step_that_fails_is_told_to_everybody(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError("no room left")

    monkeypatch.setattr(engine.engine, "step_deltas", fail)
    tasks = [asyncio.create_task(engine.generate([index], PARAMS)) for index in range(3)]
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, errors.EngineStoppedError)
        assert "no room left" in str(outcome)
    with pytest.raises(errors.EngineStoppedError, match="no room left"):
        await engine.pause("wait")


async def test_model_that_cannot_be_loaded_is_told_by_start() -> None:
    engine = AsyncEngine(EngineConfig(model_path="/no/such/model"))
    with pytest.raises(errors.EngineStoppedError, match="not started"):
        await engine.generate([1], PARAMS)
    with pytest.raises(errors.ModelNotFoundError):
        await engine.start()
    with pytest.raises(errors.EngineStoppedError):
        await engine.stats()
