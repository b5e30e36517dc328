"""How the server is doing: `/health` for probes, `/metrics` for Prometheus.

An engine that answers questions between two steps may still take no steps. So what counts is that steps are taken
while there is work. Each look remembers the steps so far. Work that is there at two looks, more than STALL_S_MAX apart,
without a step in between, is stuck.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fastapi import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.base_engine import EngineState, EngineStats
from mac_runner.nano.errors import NanoError
from mac_runner.nano.server.answers import CLIENT_GONE_STATUS, INTERNAL_ERROR_STATUS, answer
from mac_runner.nano.server.service import Service

ENGINE_ANSWER_S_MAX = 30.0
"""How long the engine may take to answer a question between two of its steps."""
STALL_S_MAX = 30.0
"""How long it may have work and take no step, before it counts as stuck."""
LOOK_AGAIN_S = 1.0
"""When to look again at what looks stuck."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Tally:
    """The answers so far, by path and status; the paths are those the server has."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    in_flight: int = 0


@dataclass(slots=True, eq=False)
class Metrics(Collector):
    """The metrics of one server; without `stats`, because the engine does not answer, only the server's own."""

    tally: Tally
    stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; called by the registry."""
        yield GaugeMetricFamily("nano_engine_up", "Whether the engine answers.", self.stats is not None)
        yield GaugeMetricFamily(
            "nano_http_requests_in_flight", "Requests that are being answered.", self.tally.in_flight
        )
        requests = CounterMetricFamily("nano_http_requests", "Requests that were answered.", labels=("path", "status"))
        for (path, status), number in sorted(self.tally.answers.items()):
            requests.add_metric((path, str(status)), number)
        yield requests
        if self.stats is not None:
            yield from _of_the_engine(self.stats)

    def page(self) -> bytes:
        """The page that Prometheus scrapes."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


def _of_the_engine(stats: EngineStats) -> Iterator[Metric]:
    free, cached = stats.num_free_blocks, stats.num_cached_blocks
    yield GaugeMetricFamily("nano_requests_running", "Completions that are being computed.", stats.num_running)
    yield GaugeMetricFamily("nano_requests_waiting", "Completions that wait for a seat.", stats.num_waiting)
    blocks = GaugeMetricFamily("nano_kv_blocks", "Blocks of the KV cache.", labels=("state",))
    for state, number in (("free", free), ("cached", cached), ("held", stats.num_blocks - free - cached)):
        blocks.add_metric((state,), number)
    yield blocks
    yield GaugeMetricFamily("nano_replicas", "Replicas of the model that serve.", stats.num_replicas)
    yield GaugeMetricFamily("nano_weight_version", "The version of the weights.", stats.weight_version)
    for name, text, number in (
        ("steps", "Steps taken.", stats.num_steps),
        ("prompt_tokens", "Tokens of admitted prompts.", stats.num_prompt_tokens),
        (
            "prompt_tokens_cached",
            "Tokens of admitted prompts that were found in the cache.",
            stats.num_cached_prompt_tokens,
        ),
        ("completion_tokens", "Tokens generated.", stats.num_completion_tokens),
        ("preemptions", "Completions that had to start again.", stats.num_preemptions),
    ):
        yield CounterMetricFamily(f"nano_{name}", text, number)


class Health(NamedTuple):
    """What a look has found. `status` is for people. What `is_stuck` may turn out well at a second look."""

    is_well: bool
    status: str
    is_stuck: bool = False


@dataclass(slots=True)
class ProgressWatch:
    """Remembers since when no step was taken although there was work."""

    num_steps: int = -1
    since_s: float = 0.0

    def look(self, stats: EngineStats, state: EngineState, now_s: float) -> Health:
        """How the engine is, at `now_s` of a monotonic clock."""
        if state is not EngineState.RUNNING:
            self.num_steps = -1
            return Health(False, str(state))
        if not stats.num_waiting and not stats.num_running:
            self.num_steps = -1
            return Health(True, "idle")
        if stats.num_steps != self.num_steps:
            self.num_steps, self.since_s = stats.num_steps, now_s
        stuck_s = now_s - self.since_s
        if stuck_s > STALL_S_MAX:
            return Health(False, f"no step for {stuck_s:.0f} s, with {stats.num_running} running", is_stuck=True)
        return Health(True, "working")


class Monitor:
    """The handlers of `/health` and `/metrics`."""

    def __init__(self, service: Service, tally: Tally) -> None:
        self._service = service
        self._tally = tally
        self._watch = ProgressWatch()

    async def health(self) -> Response:
        """200 while the engine takes steps, or has no work; else 503."""
        found = await self._look()
        if found.is_stuck:
            # Both looks may have met a request that had just come: then a step was taken by now.
            await self._service.times.sleep(LOOK_AGAIN_S)
            found = await self._look()
        return answer({"status": found.status}, status=200 if found.is_well else 503)

    async def metrics(self) -> Response:
        """The page for Prometheus."""
        try:
            stats = await self._stats()
        except (NanoError, TimeoutError):
            stats = None
        return Response(Metrics(self._tally, stats).page(), media_type=CONTENT_TYPE)

    async def _look(self) -> Health:
        try:
            stats = await self._stats()
        except NanoError as error:
            return Health(False, str(error))
        except TimeoutError:
            return Health(False, f"the engine has not come to the end of a step for {ENGINE_ANSWER_S_MAX:.0f} s")
        return self._watch.look(stats, self._service.engine.engine.state, self._service.times.monotonic_s())

    async def _stats(self) -> EngineStats:
        async with asyncio.timeout(ENGINE_ANSWER_S_MAX):
            return await self._service.engine.stats()


class AnswerCounter:
    """Middleware that counts answers by route, so that paths which clients invent do not fill the memory."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._tally.in_flight += 1
        try:
            await self._app(scope, receive, noting)
        except Exception:
            # It is answered further out, where this cannot see it.
            status = status or INTERNAL_ERROR_STATUS
            raise
        finally:
            self._tally.in_flight -= 1
            path = getattr(scope.get("route"), "path", "other")
            self._tally.answers[path, status or CLIENT_GONE_STATUS] += 1
