"""Sweeps of one engine, which a step model is fitted to.

Each sweep keeps another number of requests in flight. The engine serves nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final, NamedTuple

from mac_runner.backends.base import Backend
from mac_runner.calibration import SAMPLES_MIN, Stay, fit
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError
from mac_runner.latency import Calibration
from mac_runner.types import FinishReason, Message, Prompt, Request, Sampling, Turn, stable_hash

IN_FLIGHT: Final = (1, 4, 16)
"""How many requests are in flight, sweep by sweep; the last sweep has as many as the engine is to serve at once."""
SWEEP_S: Final = 5.0
"""How long each sweep sends requests; longer where too few of them were answered."""
_PROMPT_WORDS: Final = ((16, 64, 32), (1536, 768, 256))
"""Short prompts in the first half of a sweep and long ones in the second half: only so do the tokens of context that
are read differ from sweep to sweep in another way than the tokens that are decoded."""
_REPLY_TOKENS: Final = (16, 64, 32, 96)
_WORDS: Final = ("amber", "birch", "cedar", "delta", "ember", "frost", "grove", "heron")


class EngineName(NamedTuple):
    """What a calibration is of."""

    model: str
    gpu: str
    engine: str
    tensor_parallel_size: int = 1


async def calibrate(
    backend: Backend, clock: Clock, of: EngineName, *, slots: int, seconds: float = SWEEP_S
) -> Calibration:
    """Sweep a started engine that serves nothing else, and fit the step model. Raises BackendError and ConfigError."""
    levels = tuple(dict.fromkeys(min(level, slots) for level in (*IN_FLIGHT, slots)))
    share = math.ceil(SAMPLES_MIN / len(levels))
    stays = [stay for level in levels for stay in await sweep(backend, clock, level, seconds, share)]
    steps, error = fit(stays)
    return Calibration(
        **of._asdict(),
        cache_tokens=backend.token_budget,
        steps=steps,
        in_flight=levels,
        requests=len(stays),
        error=round(error, 4),
    )


async def sweep(backend: Backend, clock: Clock, in_flight: int, seconds: float, replies: int) -> list[Stay]:
    """Keep so many requests in flight for `seconds`, and until there are so many replies; what became of each."""
    begun_s, number, stays = clock.monotonic_s(), iter(range(1 << 30)), list[Stay]()
    words_max = max(*_PROMPT_WORDS[0], *_PROMPT_WORDS[1])

    async def client() -> None:
        nonlocal words_max
        while (sent_s := clock.monotonic_s()) < begun_s + seconds or len(stays) < replies:
            index = next(number)
            lengths = _PROMPT_WORDS[sent_s >= begun_s + seconds / 2]
            words = min(words_max, lengths[index % len(lengths)])
            request = _request(in_flight, index, words)
            reply = await backend.generate(request)
            if reply.finish_reason is FinishReason.OVERFLOW:
                if words <= 1:
                    raise ConfigError("calibration: the engine takes no prompt of one word; raise its context length")
                words_max = min(words_max, words // 2)
                continue
            if not reply.tokens.is_counted or not reply.tokens.completion:
                raise ConfigError("calibration: the engine does not count tokens; use one whose replies have `usage`")
            stays.append(
                Stay(
                    beside=in_flight,
                    sent_s=sent_s,
                    answered_s=clock.monotonic_s(),
                    prompt_tokens=reply.tokens.prompt,
                    read_tokens=reply.tokens.prompt - reply.tokens.cached,
                    completion_tokens=reply.tokens.completion,
                )
            )

    clients = [asyncio.ensure_future(client()) for _ in range(in_flight)]
    try:
        await asyncio.gather(*clients)
    finally:
        for one in clients:
            one.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return stays


def _request(in_flight: int, index: int, words: int) -> Request:
    """A prompt that shares no beginning with any other, so that no part of it is in the cache."""
    number = stable_hash("calibration", in_flight, index)
    text = " ".join([str(number), *(_WORDS[(number >> (at % 60)) & 7] for at in range(words))])
    return Request(
        conversation=f"calibration {in_flight} {index}",
        turn=Turn(round=0, agent="calibration", model="", place=0),
        prompt=Prompt(messages=(Message(role="user", content=f"{text}\nContinue this list of words."),)),
        sampling=Sampling(max_tokens=_REPLY_TOKENS[index % len(_REPLY_TOKENS)], seed=number % (1 << 31)),
    )
