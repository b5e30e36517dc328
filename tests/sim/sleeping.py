"""An engine that sleeps for as long as a step model says, step by step, with noise where it is asked for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from mac_runner.latency import CHARS_PER_TOKEN, StepModel
from mac_runner.types import FinishReason, Reply, Request, TokenCount

TRUE = StepModel(step_ms=8.0, token_ms=0.4, prompt_token_ms=0.02, context_token_ms=0.0005)


@dataclass
class Sequence:
    prompt: int
    left: int
    done: asyncio.Future[None]
    decoded: int = 0


@dataclass
class SleepingEngine:
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

    lookahead = 0
    token_budget = None

    @property
    def capacity(self) -> int:
        return self.slots

    async def start(self) -> None: ...

    async def close(self) -> None: ...

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
