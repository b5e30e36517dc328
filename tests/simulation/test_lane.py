"""A modelled lane jumps over steps, and comes to the same as one that takes each of them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.simulation.testing import KvCache, Lane, Sequence, chain_of, prompt_tokens_of
from mac_runner.types import Message, Prompt
from tests.faults.tier import SCALE
from tests.sim.stepping import Asked, SteppingLane

STEPS = StepModel(step_ms=8.0, token_ms=0.4, prompt_token_ms=0.02, context_token_ms=0.0005)


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
    return [(ended[one], one.cached_tokens) for one in sequences], lane.use.preemptions


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
