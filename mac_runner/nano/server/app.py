"""The application: the handler of each path, the owner's paths under `/admin/`, and the answers to errors.

The owner of the server brings a key of its own. Without such a key the paths of `/admin/` are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from mac_runner.nano.checkpoint import read_weights, write_weights
from mac_runner.nano.errors import NanoError
from mac_runner.nano.parallel.group import PATIENCE_S
from mac_runner.nano.server.answers import (
    INTERNAL_ERROR_STATUS,
    Refusal,
    RefusedError,
    answer,
    refusal_answer,
    refusal_of,
    shortened,
    unless_gone,
)
from mac_runner.nano.server.bodies import Body, parse_body, read_bytes
from mac_runner.nano.server.gates import BodyBudget, BodyGate, Key, KeyGate
from mac_runner.nano.server.metrics import AnswerCounter, Monitor, Tally
from mac_runner.nano.server.ollama import ChatRequest, GenerateRequest, OllamaApi, ShowRequest
from mac_runner.nano.server.openai import ChatBody, CompletionBody, OpenaiApi
from mac_runner.nano.server.service import Service

WEIGHT_VERSION_MAX = (1 << 63) - 1
"""A key of the prefix cache has 64 bits for the version, one of them the sign."""

RECEIVE_S_MAX = 86_400.0
"""The longest that a trainer may be silent."""

Handler = Callable[[Request], Awaitable[Response]]


def build_app(
    service: Service, *, admin_key: str | None = None, api_key: str | None = None, budget: BodyBudget | None = None
) -> FastAPI:
    """The application that serves `service`. The caller shuts the engine down.

    Without `admin_key` the paths of `/admin` are closed; without `api_key` all others are open.
    """
    tally = Tally()
    app = FastAPI(title="mac-serve", docs_url=None, redoc_url=None)
    _add_openai(app, OpenaiApi(service))
    _add_ollama(app, OllamaApi(service))
    _add_admin(app, AdminApi(service, None if admin_key is None else Key(admin_key)))
    monitor = Monitor(service, tally)
    app.add_api_route("/health", monitor.health, methods=["GET"])
    app.add_api_route("/metrics", monitor.metrics, methods=["GET"])
    app.add_exception_handler(NanoError, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_unknown_path)
    app.add_exception_handler(Exception, _answer_bug)
    # The middleware that is added last comes first.
    app.add_middleware(BodyGate, budget=budget or BodyBudget())
    if api_key is not None:
        app.add_middleware(KeyGate, key=Key(api_key))
    app.add_middleware(AnswerCounter, tally=tally)
    return app


def _add_openai(app: FastAPI, api: OpenaiApi) -> None:
    app.add_api_route("/v1/models", api.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", api.model, methods=["GET"])
    _add_body(app, "/v1/chat/completions", api.chat, ChatBody)
    _add_body(app, "/v1/completions", api.completions, CompletionBody)


def _add_ollama(app: FastAPI, api: OllamaApi) -> None:
    for path, handler in (("/", api.alive), ("/api/version", api.version), ("/api/tags", api.tags)):
        app.add_api_route(path, handler, methods=["GET"])
        app.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/api/ps", api.running, methods=["GET"])
    _add_body(app, "/api/show", api.show, ShowRequest)
    _add_body(app, "/api/chat", api.chat, ChatRequest)
    _add_body(app, "/api/generate", api.generate, GenerateRequest)


def _add_admin(app: FastAPI, api: AdminApi) -> None:
    app.add_api_route("/admin/state", api.state, methods=["GET"])
    _add_body(app, "/admin/weights", api.update_weights, Weights)
    _add_body(app, "/admin/weights/receive", api.receive_weights, Reception)
    app.add_api_route("/admin/cache/flush", api.flush_cache, methods=["POST"])
    _add_body(app, "/admin/pause", api.pause, Pause)
    app.add_api_route("/admin/resume", api.resume, methods=["POST"])
    _add_body(app, "/admin/sleep", api.sleep, Sleep)
    app.add_api_route("/admin/wake", api.wake, methods=["POST"])


def _add_body(app: FastAPI, path: str, handler: Handler, kind: type[Body]) -> None:
    """Add a path that takes a body, with its schema for `/openapi.json`: the framework does not read bodies here."""
    place = f"#/paths/{path.replace('/', '~1')}/post/requestBody/content/application~1json/schema/$defs/{{model}}"
    content = {"application/json": {"schema": kind.model_json_schema(ref_template=place)}}
    extra = {"requestBody": {"required": True, "content": content}}
    app.add_api_route(path, handler, methods=["POST"], openapi_extra=extra)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, NanoError)
    return refusal_answer(request.scope, refusal_of(error))


async def _answer_unknown_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = shortened(f"{request.method} {request.url.path}") + f": {error.detail}"
    refused = refusal_answer(request.scope, Refusal(status=error.status_code, message=message))
    refused.headers.update(error.headers or {})  # The methods that the path has.
    return refused


async def _answer_bug(request: Request, error: Exception) -> Response:
    del error  # The server logs it; the client does not get our internals.
    return refusal_answer(
        request.scope,
        Refusal(status=INTERNAL_ERROR_STATUS, message="an error in the server: see its log", kind="server_error"),
    )


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
    """`POST /admin/pause`."""

    mode: Literal["abort", "wait", "keep"] = "keep"


class Sleep(Body):
    """`POST /admin/sleep`."""

    drop_weights: bool = False


class Nothing(Body):
    """A request with an empty object or no body."""


Order = TypeVar("Order", bound=Body)


class AdminApi:
    """The handlers of `/admin/`."""

    def __init__(self, service: Service, key: Key | None) -> None:
        self._service = service
        self._engine = service.engine
        self._key = key
        self._weights_path: str | None = None

    async def update_weights(self, request: Request) -> Response:
        """Compute with other weights from the next step on."""
        body = await self._order(Weights, request)
        loop, path = asyncio.get_running_loop(), Path(body.path)
        state_dict = await loop.run_in_executor(self._service.thread, read_weights, path)
        version = await self._engine.update_weights(state_dict, body.version, blocking=body.blocking)
        self._weights_path = body.path
        return answer({"weight_version": version})

    async def receive_weights(self, request: Request) -> Response:
        """Compute with what a trainer sends; given up when the client leaves."""
        body = await self._order(Reception, request)
        keep = None if body.save_to is None else partial(write_weights, path=Path(body.save_to))
        work = self._engine.receive_weights(
            body.address,
            body.version,
            blocking=body.blocking,
            timeout_s=body.timeout_s,
            keep=keep,
            engines=body.engines,
        )
        version = await unless_gone(request.receive, work)
        self._weights_path = None
        return answer({"weight_version": version})

    async def flush_cache(self, request: Request) -> Response:
        """Forget every prefix."""
        await self._order(Nothing, request)
        await self._engine.flush_cache()
        return await self._state()

    async def pause(self, request: Request) -> Response:
        """Stop between two steps; answered when it has stopped."""
        await self._engine.pause((await self._order(Pause, request)).mode)
        return await self._state()

    async def resume(self, request: Request) -> Response:
        """Continue after a pause."""
        await self._order(Nothing, request)
        await self._engine.resume()
        return await self._state()

    async def sleep(self, request: Request) -> Response:
        """Give memory back; nothing may be running."""
        await self._engine.sleep(drop_weights=(await self._order(Sleep, request)).drop_weights)
        return await self._state()

    async def wake(self, request: Request) -> Response:
        """Be ready again after a sleep."""
        await self._order(Nothing, request)
        await self._engine.wake()
        return await self._state()

    async def state(self, request: Request) -> Response:
        """What the engine does, and what its cache holds."""
        await self._order(Nothing, request)
        return await self._state()

    async def _state(self) -> Response:
        stats = await self._engine.stats()
        return answer(
            {
                "state": self._engine.engine.state,
                "weight_version": stats.weight_version,
                "weights_path": self._weights_path,
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "kv_blocks": {
                    "all": stats.num_blocks,
                    "free": stats.num_free_blocks,
                    "cached": stats.num_cached_blocks,
                },
            }
        )

    async def _order(self, kind: type[Order], request: Request) -> Order:
        """The body of a request with the key. Raises RefusedError for another key before the body is read."""
        if self._key is None:
            message = "the server was started without a key for these paths: set --admin-key-env"
            raise RefusedError(Refusal(status=403, message=message, kind="permission_error"))
        self._key.require(request.headers)
        return parse_body(kind, await read_bytes(request) or b"{}")
