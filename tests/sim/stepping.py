"""Engines that take the time of a step model: one token at a time, in lists and without a short cut.

`SteppingLane` is what a modelled lane must equal. `SteppingEngine` is a backend of such lanes that sleeps for each
step; on a simulated loop it is the engine that a forecast is compared with. `SleepingEngine` has noise, and no cache.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from random import Random

from mac_runner.backends import Backend
from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.types import FinishReason, Prompt, Reply, Request, TokenCount

_BLOCK_CHARS = 16 * CHARS_PER_TOKEN


@dataclass(eq=False)
class Asked:
    """One request: a token of its prompt has four characters."""

    prompt: Prompt
    reply_tokens: int
    made: int = 0
    unread: int = 0
    own: int = 0
    cached: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return max(1, round(self.prompt.size_chars / CHARS_PER_TOKEN))

    @cached_property
    def blocks(self) -> list[str]:
        """All beginnings of the prompt that are whole blocks."""
        text = "\x1e".join(f"{message.role}\x1f{message.content}" for message in self.prompt.messages)
        whole = [text[:end] for end in range(_BLOCK_CHARS, len(text) + 1, _BLOCK_CHARS)]
        return whole[: self.prompt_tokens // 16]


@dataclass
class SteppingLane:
    """One server."""

    steps: StepModel
    seats: int
    step_tokens: int = 8192
    kv_tokens: int = 1 << 20
    is_shared: bool = True
    waiting: list[Asked] = field(default_factory=list)
    running: list[Asked] = field(default_factory=list)
    idle: dict[str, None] = field(default_factory=dict)
    """Blocks of ended requests, the oldest first. No list: among 65,536 blocks each look would take longer than a step,
    and the engine would be slower the longer it runs."""
    gets_token: list[Asked] = field(default_factory=list)
    read_now: list[Asked] = field(default_factory=list)
    preemptions: int = 0

    def begin(self) -> float:
        """Begin a step; its seconds."""
        while self._free() < len(self._writers()) and len(self.running) > 1:
            last = self.running.pop()
            self._release(last)
            self.waiting.insert(0, last)
            self.preemptions += 1
        writers = self._writers()
        left, read = max(0, self.step_tokens - len(writers)), 0
        self.read_now = []
        while True:
            for one in self.running:
                piece = min(one.unread, left)
                one.unread -= piece
                left, read = left - piece, read + piece
                if piece and not one.unread:
                    self.read_now.append(one)
            if not (self.waiting and left and len(self.running) < self.seats and self._admit(len(writers))):
                break
        self.gets_token = writers + self.read_now
        milliseconds = (
            self.steps.step_ms
            + self.steps.token_ms * len(self.gets_token)
            + self.steps.prompt_token_ms * read
            + self.steps.context_token_ms * sum(one.prompt_tokens + one.made for one in self.gets_token)
        )
        return milliseconds / 1000

    def end(self) -> list[Asked]:
        """End the step; those that are answered."""
        for one in self.gets_token:
            one.made += 1
            one.own += one not in self.read_now
        self._trim()
        ended = [one for one in self.running if one.made == one.reply_tokens]
        for one in ended:
            self.running.remove(one)
            self._release(one)
        return ended

    def _writers(self) -> list[Asked]:
        return [one for one in self.running if not one.unread]

    def _in_use(self) -> set[str]:
        return {block for one in self.running for block in one.blocks}

    def _free(self) -> int:
        return self.kv_tokens - 16 * len(self._in_use()) - sum(one.own for one in self.running)

    def _admit(self, spare: int) -> bool:
        one, in_use = self.waiting[0], self._in_use()
        tokens = one.prompt_tokens + one.made
        own = tokens - 16 * len(one.blocks) + 1
        if 16 * len(set(one.blocks) - in_use) + own + spare > self._free():
            return False
        hit = 0
        for block in one.blocks[: (tokens - 1) // 16]:
            if not self.is_shared or (block not in in_use and block not in self.idle):
                break
            hit += 16
        one.cached = hit if one.cached is None else one.cached
        one.unread, one.own = tokens - hit, own
        for block in one.blocks:
            self.idle.pop(block, None)
        self.running.append(self.waiting.pop(0))
        self._trim()
        return True

    def _trim(self) -> None:
        room = max(0, self._free()) // 16
        while len(self.idle) > room:
            del self.idle[next(iter(self.idle))]

    def _release(self, one: Asked) -> None:
        if one in self.running:
            self.running.remove(one)
        left = self._in_use()
        if self.is_shared:
            self.idle |= dict.fromkeys(block for block in reversed(one.blocks) if block not in left)


class SteppingEngine(Backend):
    """A backend of one lane, in the time of the running loop."""

    def __init__(self, lane: SteppingLane, reply: Callable[[Request], Reply]) -> None:
        self.lane = lane
        self._reply = reply
        self._answers: dict[Asked, asyncio.Future[None]] = {}
        self._worker: asyncio.Task[None] | None = None

    @property
    def capacity(self) -> int:
        return self.lane.seats

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker

    async def generate(self, request: Request) -> Reply:
        reply = self._reply(request)
        asked = Asked(request.prompt, max(1, math.ceil(reply.tokens.completion)))
        self._answers[asked] = asyncio.get_running_loop().create_future()
        self.lane.waiting.append(asked)
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        await self._answers[asked]
        tokens = TokenCount(prompt=asked.prompt_tokens, cached=asked.cached or 0, completion=asked.reply_tokens)
        return Reply(text=reply.text, tokens=tokens)

    async def _work(self) -> None:
        while self.lane.waiting or self.lane.running:
            await asyncio.sleep(self.lane.begin())
            for asked in self.lane.end():
                self._answers.pop(asked).set_result(None)
            await asyncio.sleep(0)


TRUE = StepModel(step_ms=8.0, token_ms=0.4, prompt_token_ms=0.02, context_token_ms=0.0005)


@dataclass
class Sequence:
    prompt: int
    left: int
    done: asyncio.Future[None]
    decoded: int = 0


@dataclass
class SleepingEngine(Backend):
    """It reads each prompt whole, in the step after its request came. A reply is some words, drawn by its seed."""

    true: StepModel = TRUE
    slots: int = 32
    noise: float = 0.0
    context_max: int = 1 << 30
    random: Random = field(default_factory=lambda: Random(1))
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    worker: asyncio.Task[None] | None = None
    most: int = 0

    @property
    def capacity(self) -> int:
        return self.slots

    async def generate(self, request: Request) -> Reply:
        prompt = max(1, round(request.prompt.size_chars / CHARS_PER_TOKEN))
        if prompt + request.sampling.max_tokens > self.context_max:
            return Reply(text="", finish_reason=FinishReason.OVERFLOW)
        draw = Random(request.sampling.seed)
        most = min(request.sampling.max_tokens, 96)
        completion = draw.randint(most // 2, most)
        sequence = Sequence(prompt, completion, asyncio.get_running_loop().create_future())
        self.waiting.append(sequence)
        if self.worker is None or self.worker.done():
            self.worker = asyncio.create_task(self._work())
        await sequence.done
        text = " ".join(draw.choice(("yes", "no", "perhaps", "indeed")) for _ in range(completion))
        return Reply(text=text, tokens=TokenCount(prompt=prompt, completion=completion))

    async def _work(self) -> None:
        while self.waiting or self.running:
            free = self.slots - len(self.running)
            new, self.waiting = self.waiting[:free], self.waiting[free:]
            self.running += new
            self.most = max(self.most, len(self.running))
            took_ms = (
                self.true.step_ms
                + self.true.token_ms * len(self.running)
                + self.true.prompt_token_ms * sum(one.prompt for one in new)
                + self.true.context_token_ms * sum(one.prompt + one.decoded for one in self.running)
            )
            await asyncio.sleep(took_ms / 1000 * (1 + self.random.uniform(-self.noise, self.noise)))
            for one in self.running:
                one.decoded += 1
                if one.decoded == one.left:
                    one.done.set_result(None)
            self.running = [one for one in self.running if not one.done.done()]
            await asyncio.sleep(0)
