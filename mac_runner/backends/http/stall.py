"""Finds servers that hang: requests are in flight there, and no answer comes.

A busy server is as silent as one that hangs, so silence alone proves nothing. After half of `stall_s` without an answer
a look at /metrics shows how many tokens a server has computed by then. After `stall_s` it gets the canary, and a look
at a page; if it answers the canary, it works. If not, a second look at /metrics follows. A server that counts tokens
hangs if it computed none since the first look. One without counters hangs if its pages do not come either; if they
come, it is not judged, and its requests go on until their own deadline.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from mac_runner.backends.http.answer import Answer, SendingError
from mac_runner.backends.http.endpoints import CANARY_S_MAX, Endpoint, Endpoints
from mac_runner.clock import Clock

_SAMPLE: Final = re.compile(rb"^([A-Za-z_:][\w:]*)(?:\{[^\n]*\})? +([-+.\deE]+)(?: +-?\d+)?\s*$", re.MULTILINE)
_COUNTERS: Final = ("tokens_total", "tokens_predicted_total", "nano_steps_total")
"""vLLM, SGLang, llama.cpp (with --metrics), Text Generation Inference and mac-serve name their counters so."""
_FIGURES: Final = {
    "vllm:generation_tokens_total": "made",
    "nano_completion_tokens_total": "made",
    "vllm:prompt_tokens_total": "read",
    "nano_prompt_tokens_total": "read",
    "vllm:prefix_cache_queries_total": "sought",
    "vllm:prefix_cache_hits_total": "cached",
    "nano_prompt_tokens_cached_total": "cached",
    "vllm:num_requests_running": "in_flight",
    "vllm:num_requests_waiting": "in_flight",
    "nano_requests_running": "in_flight",
    "nano_requests_waiting": "in_flight",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The counters of an engine since its start."""

    made: float = 0.0
    """Tokens generated."""
    read: float = 0.0
    """Tokens of prompts."""
    cached: float = 0.0
    """Tokens of prompts that were found in the cache."""

    @property
    def prefix_hits(self) -> float | None:
        """The share of prompt tokens that came from the cache; None before the first prompt."""
        return min(1.0, self.cached / self.read) if self.read else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a page for Prometheus says of an engine; None for what it does not say."""

    computed: float | None = None
    """The sum of the token counters of any server: it grows while the server works."""
    tokens: Tokens | None = None
    """Of vLLM and mac-serve."""
    in_flight: int | None = None
    """Requests that the engine works on, or that wait in it."""


def figures_of(page: bytes) -> Figures:
    """The figures on a page for Prometheus; a sample that is no finite number is left out."""
    computed, found = list[float](), dict[str, float]()
    for sample, text in _SAMPLE.findall(page):
        name = sample.decode()
        with suppress(ValueError):
            if not math.isfinite(value := float(text)):
                continue
            if name.endswith(_COUNTERS):
                computed.append(value)
            if figure := _FIGURES.get(name):
                found[figure] = found.get(figure, 0.0) + value
    tokens = Tokens(
        made=found.get("made", 0.0), read=found.get("sought", found.get("read", 0.0)), cached=found.get("cached", 0.0)
    )
    return Figures(
        computed=math.fsum(computed) if computed else None,
        tokens=tokens if "made" in found else None,
        in_flight=int(found["in_flight"]) if "in_flight" in found else None,
    )


class Verdict(Enum):
    """What the looks at a silent server show."""

    WORKS = "works"
    HANGS = "hangs"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """What a silent server answered to. The tokens are None where no page counted any."""

    canary: bool
    models: bool
    tokens_before: float | None
    tokens_after: float | None


def verdict(looks: Looks) -> Verdict:
    if looks.canary:
        return Verdict.WORKS
    if looks.tokens_before is not None and looks.tokens_after is not None:
        return Verdict.HANGS if looks.tokens_after == looks.tokens_before else Verdict.WORKS
    return Verdict.UNKNOWN if looks.models or looks.tokens_after is not None else Verdict.HANGS


async def _came(answering: Awaitable[Answer]) -> Answer | None:
    """An answer, whatever its status; None where none comes in time."""
    try:
        return await answering
    except SendingError:
        return None


@dataclass(slots=True)
class _Case:
    """A silence that is under observation. `silent_from_s` shows whether an answer has ended it."""

    silent_from_s: float
    tokens: float | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class StallWatch:
    """One timer for all servers of a model, which runs only while a request is in flight.

    `page` gets a quick page of one, and `metrics` that with its counters, within so many seconds. `answers` is whether
    it answers the canary, whatever its status. `hangs` is called for one that does.
    """

    endpoints: Endpoints
    stall_s: float
    clock: Clock
    page: Callable[[Endpoint], Awaitable[Answer]]
    metrics: Callable[[Endpoint, float], Awaitable[Answer]]
    answers: Callable[[Endpoint], Awaitable[bool]]
    hangs: Callable[[Endpoint, str], None]
    say: Callable[[Endpoint, str], None]
    _task: asyncio.Task[None] | None = None
    _looks: dict[Endpoint, asyncio.Task[None]] = field(default_factory=dict)
    _cases: dict[Endpoint, _Case] = field(default_factory=dict)
    _said: set[Endpoint] = field(default_factory=set)

    def arm(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        tasks = [*self._looks.values(), *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while busy := self._busy():
            now_s = self.clock.monotonic_s()
            wait_s = self.stall_s / 2  # One that has just got its first request, or answered it, is not due before.
            for endpoint in busy:
                if endpoint in self._looks:
                    continue
                due_in_s = self._due_s(endpoint) - now_s
                if due_in_s > 0:
                    wait_s = min(wait_s, due_in_s)
                    continue
                look = self._looks[endpoint] = asyncio.create_task(self._observe(endpoint))
                look.add_done_callback(partial(self._over, endpoint))
            await self.clock.sleep(wait_s)

    def _over(self, endpoint: Endpoint, _look: asyncio.Task[None]) -> None:
        del self._looks[endpoint]

    def _busy(self) -> list[Endpoint]:
        busy = [one for one in self.endpoints.all if one.in_flight]
        if self._cases:
            self._cases = {one: case for one, case in self._cases.items() if one in busy}
        return busy

    def _due_s(self, endpoint: Endpoint) -> float:
        """When it is looked at next: at half of its patience, and when that is over."""
        silence = endpoint.silence
        due_s = silence.due_s(self.stall_s)
        case = self._cases.get(endpoint)
        if case is not None and case.silent_from_s == silence.checked_s:
            return due_s
        return silence.checked_s + (due_s - silence.checked_s) / 2

    async def _observe(self, endpoint: Endpoint) -> None:
        silence = endpoint.silence
        since_s = silence.checked_s
        case = self._cases.get(endpoint)
        if case is None or case.silent_from_s != since_s:
            self._cases[endpoint] = _Case(since_s, await self._tokens(endpoint, self.stall_s / 2))
            return
        canary, models = await asyncio.gather(self.answers(endpoint), _came(self.page(endpoint)))
        after = await self._tokens(endpoint) if models is not None and not canary else None
        if silence.checked_s != since_s or not endpoint.in_flight:
            return  # An answer came, or every request was given up.
        looks = Looks(canary=canary, models=models is not None, tokens_before=case.tokens, tokens_after=after)
        now_s = self.clock.monotonic_s()
        match verdict(looks):
            case Verdict.WORKS:
                silence.checked_s = now_s
            case Verdict.UNKNOWN:
                silence.checked_s = now_s
                if endpoint not in self._said:
                    self._said.add(endpoint)
                    self.say(
                        endpoint,
                        f" has given no reply for {now_s - silence.since_s:.0f} s and does not count tokens under "
                        "/metrics, so it may work or hang: its requests go on until timeout_s",
                    )
            case Verdict.HANGS:
                silent_s = now_s - silence.since_s
                silence.longest_s = max(silence.longest_s, silent_s)
                what = "and has computed no token meanwhile" if looks.models else "not to a canary or a page either"
                self.hangs(endpoint, f"no answer for {silent_s:.0f} s, {what}")

    async def _tokens(self, endpoint: Endpoint, within_s: float = CANARY_S_MAX) -> float | None:
        page = await _came(self.metrics(endpoint, min(within_s, CANARY_S_MAX)))
        tokens = figures_of(page.body).computed if page is not None and page.status == 200 else None
        endpoint.silence.has_counters = endpoint.silence.has_counters or tokens is not None
        return tokens
