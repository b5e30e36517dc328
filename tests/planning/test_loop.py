"""The simulated loop, a modelled lane, and what a simulated run says: near to an engine that takes every step."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random
from typing import Any

import pytest

from mac_runner.latency import CHARS_PER_TOKEN
from mac_runner.planning.testing import (
    PILOT,
    DeadlockError,
    EngineName,
    ForbiddenError,
    Forecast,
    KvCache,
    Lane,
    Sequence,
    SimulatedClock,
    Study,
    calibrate,
    chain_of,
    forecast,
    prompt_tokens_of,
)
from mac_runner.scheduler import Progress
from mac_runner.types import Message, Prompt, Reply, Request, TokenCount
from tests.faults.tier import SCALE
from tests.sim.shuffled import ShuffledLoop, simulate
from tests.sim.stepping import Asked, SteppingEngine, SteppingLane
from tests.sim.studies import STEPS, played, study


def order(seed: int, names: str = "abc") -> str:
    """The order in which tasks that are ready at once run."""
    said: list[str] = []

    async def say(name: str) -> None:
        said.append(name)

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(say(name))

    simulate(program, seed=seed)
    return "".join(said)


def test_time_jumps_to_the_next_timer_and_no_further() -> None:
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, delay_s: float) -> None:
        await SimulatedClock().sleep(delay_s)
        woken.append((name, SimulatedClock().monotonic_s()))

    async def program() -> None:
        async with asyncio.TaskGroup() as group:
            for name, delay_s in (("week", 604_800.0), ("second", 1.0), ("hour", 3600.0)):
                group.create_task(sleep(name, delay_s))

    simulate(program)
    assert woken == [("second", 1.0), ("hour", 3600.0), ("week", 604_800.0)]


def test_what_is_ready_runs_in_any_order_and_in_the_same_one_for_a_seed() -> None:
    orders = [order(seed) for seed in range(60)]

    assert set(orders) == {"".join(letters) for letters in permutations("abc")}
    assert orders == [order(seed) for seed in range(60)]


def test_a_program_in_which_all_tasks_wait_is_an_error() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        simulate(stuck)


def test_a_task_left_behind_is_an_error() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        program.kept = loop.create_task(asyncio.sleep(1.0))  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="tasks left behind"):
        simulate(program)


async def _listen() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)


async def _connect() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def _read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        asyncio.get_running_loop().add_reader(ours, print)


async def _thread() -> None:
    await asyncio.to_thread(print)


async def _signal() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, print)


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_whoever_asks_for_something_real_is_told() -> None:
    for program in (_listen, _connect, _read, _thread, _signal):
        with pytest.raises(ForbiddenError):
            simulate(program)
        gc.collect()  # What the refused call had opened already complains of it here, and not in another test.


def test_each_turn_of_the_loop_can_be_stopped_at() -> None:
    seen: list[int] = []

    async def program() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ShuffledLoop)
        loop.at_turn = seen.append
        for _ in range(5):
            await asyncio.sleep(1.0)
        loop.at_turn = None

    simulate(program)
    assert len(seen) >= 5
    assert seen == list(range(seen[0], seen[0] + len(seen)))


def actual(asked: Study) -> tuple[float, Progress]:
    """The study on an engine that takes every step."""
    model = asked.engines["engine"]
    lane = SteppingLane(STEPS, model.slots, model.step_tokens, model.kv_tokens)
    return played(asked, SteppingEngine(lane, asked.loads[0].replies))


def near(found: Forecast, other: Forecast, part: float) -> None:
    """Two forecasts of one study."""
    assert found.seconds == pytest.approx(other.seconds, rel=part)
    assert found.turns == pytest.approx(other.turns, rel=part)
    assert found.tokens.completion == pytest.approx(other.tokens.completion, rel=part)
    assert found.engines["engine"].slot_share == pytest.approx(other.engines["engine"].slot_share, rel=part)
    assert found.hit_share == pytest.approx(other.hit_share, abs=0.03)


@pytest.mark.ci
def test_a_run_takes_what_it_takes_on_an_engine_that_takes_every_step(subtests: pytest.Subtests) -> None:
    for slots, kv_tokens in ((4, 1 << 20), (16, 1 << 20), (16, 2_000)):
        asked = study("discussion_small", "discussant", conversations=12, slots=slots, kv_tokens=kv_tokens)
        found = forecast(asked)
        seconds, progress = actual(asked)
        with subtests.test(slots=slots, kv_tokens=kv_tokens):
            assert found.seconds == pytest.approx(seconds, rel=0.01)
            assert found.tokens.cached == pytest.approx(progress.tokens.cached, rel=0.02)
            assert (found.turns, found.tokens.completion) == (progress.turns, progress.tokens.completion)


@pytest.mark.ci
def test_a_calibrated_engine_is_forecast_within_ten_percent(subtests: pytest.Subtests) -> None:
    def counted(request: Request) -> Reply:
        return Reply(text="words", tokens=TokenCount(completion=request.sampling.max_tokens))

    async def sweep() -> Any:
        lane = SteppingLane(STEPS, 64, is_shared=False)
        engine = SteppingEngine(lane, counted)
        return await calibrate(engine, SimulatedClock(), EngineName("m", "g", "e"), slots=16, seconds=3.0)

    with asyncio.Runner(loop_factory=lambda: ShuffledLoop(3)) as runner:
        found = runner.run(sweep())
    for conversations, slots in ((6, 4), (16, 16), (30, 32)):
        asked = study("discussion_small", "discussant", conversations=conversations, slots=slots)
        seconds, _ = actual(asked)
        model = replace(asked.engines["engine"], steps=found.steps)
        planned = forecast(replace(asked, engines={"engine": model}))
        with subtests.test(slots=slots):
            assert planned.seconds == pytest.approx(seconds, rel=0.1)


@pytest.mark.ci
def test_a_slice_of_the_lanes_shows_the_whole() -> None:
    asked = study(conversations=240, lanes=16, slots=2, client_ms=0.3)

    whole, part = forecast(asked), forecast(asked, turns_max=1)

    assert (whole.played, whole.played_share) == (240, 1.0)
    assert (part.played, part.played_share) == (60, 0.25)
    assert part.client_share == pytest.approx(whole.client_share, rel=0.05)
    near(part, whole, 0.05)


@pytest.mark.ci
def test_two_lanes_with_many_slots_show_the_whole() -> None:
    asked = study(conversations=640, lanes=4, slots=64)

    whole, part = forecast(asked), forecast(asked, turns_max=1)

    assert (whole.played_share, part.played_share) == (1.0, 0.5)
    assert part.seconds / part.turns == pytest.approx(whole.seconds / whole.turns, rel=0.05)


@pytest.mark.ci
def test_the_first_conversations_show_how_the_others_go() -> None:
    """A part is large enough for conversations to begin as others end."""
    asked = study(conversations=320, slots=12)

    whole, part = forecast(asked), forecast(asked, turns_max=1)

    assert (whole.played, part.played, part.played_share) == (320, PILOT, 1.0)
    near(part, whole, 0.03)
    assert PILOT < forecast(study(conversations=320, slots=60), turns_max=1).played < 200


@pytest.mark.ci
def test_the_first_thing_that_holds_a_run_back_is_named(subtests: pytest.Subtests) -> None:
    for limit, asked in {
        "client": study(conversations=40, slots=16, client_ms=40.0),
        "engine": study(conversations=40, slots=4),
        "kv": study("discussion_small", "discussant", conversations=20, slots=64, kv_tokens=2_000),
        "gating": study(conversations=20, slots=1_000),
    }.items():
        with subtests.test(limit):
            found = forecast(asked)
            assert found.limit == limit
            assert found.critical_path_s <= found.seconds
            assert found.limiting_engine == ("engine" if limit in ("engine", "kv") else None)


def test_prompts_that_begin_alike_are_read_once_where_the_engine_keeps_them() -> None:
    asked = study("discussion_small", "discussant", conversations=10, slots=8)
    model = asked.engines["engine"]

    kept = forecast(asked)
    read = forecast(replace(asked, engines={"engine": replace(model, is_prefix_cached=False)}))

    assert kept.hit_share > 0.2
    assert (read.tokens.cached, read.tokens.prompt) == (0, kept.tokens.prompt)
    assert read.seconds > kept.seconds


def test_two_simulations_of_a_study_are_equal() -> None:
    asked = study("discussion_small", "discussant", conversations=10, lanes=3, slots=2, client_ms=0.7)

    assert forecast(asked) == forecast(asked)


def test_a_prompt_beyond_the_context_gets_no_reply() -> None:
    found = forecast(study("discussion_small", "discussant", conversations=2, slots=8, context_tokens=20))

    assert (found.failed, found.tokens.completion) == (2, 0)


@dataclass
class World:
    """Requests that come at moments, and the server that they come to."""

    arrivals: list[tuple[float, Prompt, int]]
    seats: int
    step_tokens: int
    kv_tokens: int
    is_shared: bool

    @staticmethod
    def draw(seed: int) -> World:
        random = Random(seed)
        beginnings = ["".join(random.choices("abcd", k=random.choice([10, 300, 900]))) for _ in range(3)]
        at_s, arrivals = 0.0, []
        for _ in range(random.randint(1, 25)):
            at_s += random.choice([1e-5, 0.003, 0.1, 0.9]) * (0.5 + random.random())
            text = random.choice(beginnings) + "".join(random.choices("xyz", k=random.choice([0, 40, 400])))
            arrivals.append((at_s, Prompt(messages=(Message(role="user", content=text),)), random.choice([1, 3, 40])))
        kv_tokens = random.choice([1 << 20, 420, 600, 1500])
        return World(arrivals, random.choice([1, 3, 16]), random.choice([40, 8192]), kv_tokens, random.random() < 0.8)


def jumped(world: World) -> tuple[list[tuple[float, int | None]], int]:
    cache = KvCache(world.kv_tokens, is_shared=world.is_shared)
    lane = Lane(STEPS, seats=world.seats, step_tokens=world.step_tokens, cache=cache)
    sequences, ended = [], dict[Sequence, float]()

    def run_until(now_s: float) -> None:
        while lane.due_s is not None and lane.due_s <= now_s:
            due_s = lane.due_s
            ended.update(dict.fromkeys(lane.end_steps(), due_s))

    for at_s, prompt, reply in world.arrivals:
        run_until(at_s)
        blocks, tokens = chain_of(prompt, CHARS_PER_TOKEN), prompt_tokens_of(prompt, CHARS_PER_TOKEN)
        sequences.append(Sequence(blocks=blocks, prompt_tokens=tokens, reply_tokens=reply))
        lane.add(sequences[-1], at_s)
    run_until(float("inf"))
    return [(ended[one], one.cached_tokens) for one in sequences], lane.preemptions


def stepped(world: World) -> tuple[list[tuple[float, int | None]], int]:
    lane = SteppingLane(STEPS, world.seats, world.step_tokens, world.kv_tokens, world.is_shared)
    asked = [Asked(prompt, reply) for _, prompt, reply in world.arrivals]
    coming = [(at_s, one) for (at_s, _, _), one in zip(world.arrivals, asked, strict=True)]
    now_s, ended = 0.0, dict[Asked, float]()
    while coming or lane.waiting or lane.running:
        if not (lane.waiting or lane.running):
            now_s = max(now_s, coming[0][0])
        while coming and coming[0][0] <= now_s:
            lane.waiting.append(coming.pop(0)[1])
        now_s += lane.begin()
        ended.update(dict.fromkeys(lane.end(), now_s))
    return [(ended[one], one.cached) for one in asked], lane.preemptions


def test_a_lane_answers_when_one_does_that_takes_every_step(subtests: pytest.Subtests) -> None:
    preemptions = hits = 0
    for seed in range(150 * SCALE):
        world = World.draw(seed)
        (found, preempted), (expected, as_expected) = jumped(world), stepped(world)
        with subtests.test(seed=seed):
            assert [at_s for at_s, _ in found] == pytest.approx([at_s for at_s, _ in expected], abs=1e-6)
            assert [cached for _, cached in found] == [cached for _, cached in expected]
            assert preempted == as_expected
        preemptions, hits = preemptions + preempted, hits + sum(bool(cached) for _, cached in found)

    assert preemptions, "no world fills its cache"
    assert hits, "no world shares a beginning"
