"""Every bound of the server. Units come last in the names.

~~~~
What Prometheus scrapes, in its text format. Pure.

~~~~
Whether the engine gets on with its work. Pure but for what it remembers: whoever asks tells the time.

An engine that answers is not one that works: it may answer every question between two steps and take none. So what
counts is that steps are taken while there is work. Each look remembers the steps so far; work that is there at two
looks, STALL_S_MAX apart, without a step in between, is stuck.


~~~~
The application: which path is answered by whom, and how errors are told in each protocol."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from fastapi import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.engine import EngineState, EngineStats
from mac_runner.nano.errors import NanoError
from mac_runner.nano.server.answers import CLIENT_GONE_STATUS, INTERNAL_ERROR_STATUS, answer
from mac_runner.nano.server.service import Service

# How long the engine may take to answer a question between two of its steps, and how long it may have work and take no
# step, before it counts as stuck.
ENGINE_ANSWER_S_MAX = 30.0
STALL_S_MAX = 30.0
LOOK_AGAIN_S = 1.0
"""After how long what looks stuck is looked at again."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Tally:
    """Answers that were given, by path and status; the paths are those the server has."""

    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    in_flight: int = 0


class Metric(NamedTuple):
    """One metric, and its value for each set of labels."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    values: Mapping[str, int]


def exposition(stats: EngineStats | None, tally: Tally) -> str:
    """The page; without `stats`, for an engine that does not answer, what the server itself knows."""
    metrics = [
        _one("nano_engine_up", "gauge", "Whether the engine answers.", stats is not None),
        _one("nano_http_requests_in_flight", "gauge", "Requests that are being answered.", tally.in_flight),
        Metric(
            "nano_http_requests_total",
            "counter",
            "Requests that were answered.",
            {f'{{path="{path}",status="{status}"}}': n for (path, status), n in sorted(tally.answers.items())},
        ),
    ]
    return "".join(_lines([*metrics, *(_of_the_engine(stats) if stats is not None else ())]))


def _of_the_engine(stats: EngineStats) -> Iterable[Metric]:
    free, cached = stats.num_free_blocks, stats.num_cached_blocks
    yield _one("nano_requests_running", "gauge", "Completions that are being computed.", stats.num_running)
    yield _one("nano_requests_waiting", "gauge", "Completions that wait for a seat.", stats.num_waiting)
    yield Metric(
        "nano_kv_blocks",
        "gauge",
        "Blocks of the KV cache.",
        {
            '{state="free"}': free,
            '{state="cached"}': cached,
            '{state="held"}': stats.num_blocks - free - cached,
        },
    )
    yield _one("nano_weight_version", "gauge", "The version of the weights.", stats.weight_version)
    yield _one("nano_steps_total", "counter", "Steps taken.", stats.num_steps)
    yield _one("nano_prompt_tokens_total", "counter", "Tokens of admitted prompts.", stats.num_prompt_tokens)
    cached_help = "Tokens of admitted prompts that were found in the cache."
    yield _one("nano_prompt_tokens_cached_total", "counter", cached_help, stats.num_cached_prompt_tokens)
    yield _one("nano_completion_tokens_total", "counter", "Tokens generated.", stats.num_completion_tokens)
    yield _one("nano_preemptions_total", "counter", "Completions that had to start anew.", stats.num_preemptions)


def _one(name: str, kind: Literal["gauge", "counter"], text: str, value: int) -> Metric:
    return Metric(name, kind, text, {"": value})


def _lines(metrics: Iterable[Metric]) -> Iterable[str]:
    for metric in metrics:
        yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n"
        yield from (f"{metric.name}{labels} {value:d}\n" for labels, value in metric.values.items())


class Health(NamedTuple):
    """What a look has found. `status` is a word for people. One that `is_stuck` may turn out well at a second look."""

    is_well: bool
    status: str
    is_stuck: bool = False


@dataclass(slots=True)
class ProgressWatch:
    """Remembers since when no step was taken although there was work."""

    num_steps: int = -1
    since_s: float = 0.0

    def look(self, stats: EngineStats, state: EngineState, now_s: float) -> Health:
        """How the engine is, at `now_s` of a clock that only ever grows."""
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


class Watched:
    """How the server is, for those who watch over it."""

    def __init__(self, service: Service, tally: Tally) -> None:
        self._service = service
        self._tally = tally
        self._watch = ProgressWatch()

    async def health(self) -> Response:
        """200 while the engine gets on with its work, or has none."""
        found = await self._look()
        return answer({"status": found.status}, status=200 if found.is_well else 503)

    async def metrics(self) -> Response:
        """For Prometheus."""
        try:
            async with asyncio.timeout(ENGINE_ANSWER_S_MAX):
                stats = await self._service.engine.stats()
        except (NanoError, TimeoutError):
            stats = None
        return Response(exposition(stats, self._tally), media_type=CONTENT_TYPE)

    async def _look(self) -> Health:
        found = await self._glance()
        if not found.is_stuck:
            return found
        # Both looks may have met a request that had just come: then a step was taken by now.
        await self._service.times.sleep(LOOK_AGAIN_S)
        return await self._glance()

    async def _glance(self) -> Health:
        engine = self._service.engine
        try:
            async with asyncio.timeout(ENGINE_ANSWER_S_MAX):
                stats = await engine.stats()
        except NanoError as error:
            return Health(False, str(error))
        except TimeoutError:
            return Health(False, f"the engine has not come to the end of a step for {ENGINE_ANSWER_S_MAX:.0f} s")
        return self._watch.look(stats, engine.engine.state, self._service.times.monotonic_s())


class Counting:
    """Counts answers, by the path as the application knows it: what clients make up does not fill the memory."""

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
