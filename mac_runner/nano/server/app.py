"""The application: the handler of each path, the owner's paths, health and metrics, and the answers to errors.

An engine that answers questions between two steps may still take no steps. So what counts for `/health` is that steps
are taken: work that is there at two looks, more than STALL_S_MAX apart, without a step in between, is stuck.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.checkpoint import read_weights, write_weights
from mac_runner.nano.engine import EngineState, EngineStats
from mac_runner.nano.errors import NanoError
from mac_runner.nano.parallel.group import PATIENCE_S
from mac_runner.nano.server.http import (
    CLIENT_GONE_STATUS,
    SERVER_ERROR,
    Body,
    BodyBudget,
    Gate,
    Key,
    RefusedError,
    answer,
    parse_body,
    read_bytes,
    read_request,
    refusal_answer,
    refusal_of,
    shortened,
    unless_gone,
)
from mac_runner.nano.server.ollama import ChatRequest, GenerateRequest, OllamaApi, ShowRequest
from mac_runner.nano.server.openai import ChatBody, CompletionBody, OpenaiApi
from mac_runner.nano.server.service import Service

WEIGHT_VERSION_MAX = (1 << 63) - 1
"""A key of the prefix cache has 64 bits for the version, one of them the sign."""
RECEIVE_S_MAX = 86_400.0
"""The longest that a trainer may be silent."""
ENGINE_ANSWER_S_MAX = 30.0
"""How long the engine may take to answer a question between two of its steps."""
STALL_S_MAX = 30.0
"""How long it may have work and take no step, before it counts as stuck."""
LOOK_AGAIN_S = 1.0
"""When to look again at what looks stuck."""

Handler = Callable[[Request, Any], Awaitable[Response]]
Reader = Callable[[type[Body], Request], Awaitable[Body]]


def build_app(
    service: Service, *, admin_key: str | None = None, api_key: str | None = None, budget: BodyBudget | None = None
) -> FastAPI:
    """The application that serves `service`. The caller shuts the engine down.

    Without `admin_key` the paths of `/admin` are closed; without `api_key` all others are open.
    """
    tally, engine = Tally(), service.engine
    openai, ollama, monitor = OpenaiApi(service), OllamaApi(service), Monitor(service, tally)
    admin = AdminApi(service, None if admin_key is None else Key(admin_key))
    app = FastAPI(title="mac-serve", docs_url=None, redoc_url=None)
    for path, look in (
        ("/v1/models", openai.models),
        ("/v1/models/{name:path}", openai.model),
        ("/", ollama.alive),
        ("/api/version", ollama.version),
        ("/api/tags", ollama.tags),
        ("/api/ps", ollama.running),
        ("/admin/state", admin.state),
        ("/health", monitor.health),
        ("/metrics", monitor.metrics),
    ):
        app.add_api_route(path, look, methods=["GET"])
        if path in ("/", "/api/version", "/api/tags"):
            app.add_api_route(path, look, methods=["HEAD"], include_in_schema=False)
    read = partial(read_request, thread=service.thread)
    _add_body(app, "/v1/chat/completions", ChatBody, openai.complete, read)
    _add_body(app, "/v1/completions", CompletionBody, openai.complete, read)
    _add_body(app, "/api/show", ShowRequest, ollama.show, read)
    _add_body(app, "/api/chat", ChatRequest, ollama.complete, read)
    _add_body(app, "/api/generate", GenerateRequest, ollama.complete, read)
    _add_body(app, "/admin/weights", Weights, admin.update_weights, admin.read)
    _add_body(app, "/admin/weights/receive", Reception, admin.receive_weights, admin.read)
    acts: tuple[tuple[str, type[Body], Callable[[Any], Awaitable[None]]], ...] = (
        ("cache/flush", Nothing, lambda _: engine.flush_cache()),
        ("pause", Pause, lambda body: engine.pause(body.mode)),
        ("resume", Nothing, lambda _: engine.resume()),
        ("sleep", Sleep, lambda body: engine.sleep(drop_weights=body.drop_weights)),
        ("wake", Nothing, lambda _: engine.wake()),
    )
    for path, kind, act in acts:
        _add_body(app, f"/admin/{path}", kind, partial(admin.order, act=act), admin.read)
    app.add_exception_handler(NanoError, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_unknown_path)
    app.add_exception_handler(Exception, _answer_bug)
    # The middleware that is added last comes first.
    app.add_middleware(Gate, key=None if api_key is None else Key(api_key), budget=budget or BodyBudget())
    app.add_middleware(AnswerCounter, tally=tally)
    return app


def _add_body(app: FastAPI, path: str, kind: type[Body], handle: Handler, read: Reader) -> None:
    """Add a path that takes a body, with its schema for `/openapi.json`: the framework does not read bodies here."""

    async def read_and_handle(request: Request) -> Response:
        return await handle(request, await read(kind, request))

    place = f"#/paths/{path.replace('/', '~1')}/post/requestBody/content/application~1json/schema/$defs/{{model}}"
    content = {"application/json": {"schema": kind.model_json_schema(ref_template=place)}}
    extra = {"requestBody": {"required": True, "content": content}}
    app.add_api_route(path, read_and_handle, methods=["POST"], name=path.rpartition("/")[2], openapi_extra=extra)


async def _answer_refusal(request: Request, error: Any) -> Response:
    return refusal_answer(request.scope, refusal_of(error))


async def _answer_unknown_path(request: Request, error: Any) -> Response:
    message = shortened(f"{request.method} {request.url.path}") + f": {error.detail}"
    refused = refusal_answer(request.scope, RefusedError(error.status_code, message))
    refused.headers.update(error.headers or {})  # The methods that the path has.
    return refused


async def _answer_bug(request: Request, error: Exception) -> Response:
    del error  # The server logs it; the client does not get our internals.
    return refusal_answer(request.scope, RefusedError(500, "an error in the server: see its log", SERVER_ERROR))


class Weights(Body):
    """`POST /admin/weights`: safetensors in a directory that the server can read."""

    path: Annotated[str, Field(min_length=1)]
    version: Annotated[int | None, Field(ge=1, le=WEIGHT_VERSION_MAX)] = None
    blocking: bool = False


class Reception(Body):
    """`POST /admin/weights/receive`: the next weights of the trainer whose `WeightSender` listens at `address`."""

    address: Annotated[str, Field(min_length=1)]
    version: Annotated[int | None, Field(ge=1, le=WEIGHT_VERSION_MAX)] = None
    blocking: bool = False
    timeout_s: Annotated[float, Field(gt=0, le=RECEIVE_S_MAX)] = PATIENCE_S
    save_to: Annotated[str, Field(pattern=r"\.safetensors$")] | None = None
    """A new file that keeps the weights."""
    engines: Annotated[int, Field(ge=1)] | None = None
    """How many engines receive from the trainer: one that waits for another number is an error at once."""


class Pause(Body):
    """`POST /admin/pause`: answered when the engine has stopped, between two steps."""

    mode: Literal["abort", "wait", "keep"] = "keep"


class Sleep(Body):
    """`POST /admin/sleep`: give memory back; nothing may be running."""

    drop_weights: bool = False


class Nothing(Body):
    """A request with an empty object or no body."""


class AdminApi:
    """The handlers of `/admin/`."""

    def __init__(self, service: Service, key: Key | None) -> None:
        self._service = service
        self._engine = service.engine
        self._key = key
        self._weights_path: str | None = None

    async def read(self, kind: type[Body], request: Request) -> Body:
        """The body of a request with the key; none is an empty object.

        Raises RefusedError for another key before the body is read.
        """
        if self._key is None:
            message = "the server was started without a key for these paths: set --admin-key-env"
            raise RefusedError(403, message, "permission_error")
        self._key.require(request.headers)
        return parse_body(kind, await read_bytes(request) or b"{}")

    async def update_weights(self, _: Request, body: Weights) -> Response:
        loop, path = asyncio.get_running_loop(), Path(body.path)
        state_dict = await loop.run_in_executor(self._service.thread, read_weights, path)
        version = await self._engine.update_weights(state_dict, body.version, blocking=body.blocking)
        self._weights_path = body.path
        return answer({"weight_version": version})

    async def receive_weights(self, request: Request, body: Reception) -> Response:
        """Compute with what a trainer sends; given up when the client leaves."""
        work = self._engine.receive_weights(
            body.address,
            body.version,
            blocking=body.blocking,
            timeout_s=body.timeout_s,
            keep=None if body.save_to is None else partial(write_weights, path=Path(body.save_to)),
            engines=body.engines,
        )
        version = await unless_gone(request.receive, work)
        self._weights_path = None
        return answer({"weight_version": version})

    async def order(self, _: Request, body: Body, act: Callable[[Any], Awaitable[None]]) -> Response:
        await act(body)
        return await self._state()

    async def state(self, request: Request) -> Response:
        await self.read(Nothing, request)
        return await self._state()

    async def _state(self) -> Response:
        stats = await self._engine.stats()
        blocks = {"all": stats.num_blocks, "free": stats.num_free_blocks, "cached": stats.num_cached_blocks}
        return answer(
            {
                "state": self._engine.engine.state,
                "weight_version": stats.weight_version,
                "weights_path": self._weights_path,
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "kv_blocks": blocks,
            }
        )


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
        yield GaugeMetricFamily("nano_engine_up", "Whether the engine answers.", self.stats is not None)
        in_flight = self.tally.in_flight
        yield GaugeMetricFamily("nano_http_requests_in_flight", "Requests that are being answered.", in_flight)
        requests = CounterMetricFamily("nano_http_requests", "Requests that were answered.", labels=("path", "status"))
        for (path, status), number in sorted(self.tally.answers.items()):
            requests.add_metric((path, str(status)), number)
        yield requests
        if self.stats is not None:
            yield from _of_the_engine(self.stats)

    def page(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)


def _of_the_engine(stats: EngineStats) -> Iterator[Metric]:
    free, cached = stats.num_free_blocks, stats.num_cached_blocks
    blocks = GaugeMetricFamily("nano_kv_blocks", "Blocks of the KV cache.", labels=("state",))
    for state, number in (("free", free), ("cached", cached), ("held", stats.num_blocks - free - cached)):
        blocks.add_metric((state,), number)
    yield blocks
    for name, text, number in (
        ("requests_running", "Completions that are being computed.", stats.num_running),
        ("requests_waiting", "Completions that wait for a seat.", stats.num_waiting),
        ("replicas", "Replicas of the model that serve.", stats.num_replicas),
        ("weight_version", "The version of the weights.", stats.weight_version),
    ):
        yield GaugeMetricFamily(f"nano_{name}", text, number)
    cached_text = "Tokens of admitted prompts that were found in the cache."
    for name, text, number in (
        ("steps", "Steps taken.", stats.num_steps),
        ("prompt_tokens", "Tokens of admitted prompts.", stats.num_prompt_tokens),
        ("prompt_tokens_cached", cached_text, stats.num_cached_prompt_tokens),
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
    """The handlers of `/health` for probes and `/metrics` for Prometheus."""

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
        try:
            stats = await self._stats()
        except (NanoError, TimeoutError):
            stats = None
        return Response(Metrics(self._tally, stats).page(), media_type="text/plain; version=0.0.4; charset=utf-8")

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
    """ASGI middleware that counts answers by route: paths that clients invent must not fill the memory."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            status = status or 500
            raise
        finally:
            self._tally.in_flight -= 1
            path = getattr(scope.get("route"), "path", "other")
            self._tally.answers[path, status or CLIENT_GONE_STATUS] += 1
