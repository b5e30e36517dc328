"""Every bound of the server. Units come last in the names.

~~~~
What the owner of the server may do to the engine while it serves: `/admin/…`, behind a key.

Without a key configured there is no such owner, and the paths are closed.


~~~~
The application: which path is answered by whom, and how errors are told in each protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, Request, Response
from pydantic import Field
from starlette.exceptions import HTTPException

from mac_runner.nano.checkpoint import read_state_dict
from mac_runner.nano.errors import NanoError
from mac_runner.nano.server.answers import (
    INTERNAL_ERROR_STATUS,
    Refusal,
    RefusedError,
    answer,
    refusal_answer,
    refusal_of,
)
from mac_runner.nano.server.bodies import Body, parse_body, read_bytes
from mac_runner.nano.server.gates import BodyBudget, BodyGate, Key, KeyGate
from mac_runner.nano.server.metrics import (
    Counting,
    Tally,
    Watched,
)
from mac_runner.nano.server.ollama import ChatRequest, GenerateRequest, OllamaApi, ShowRequest
from mac_runner.nano.server.openai import ChatBody, CompletionBody, OpenaiApi
from mac_runner.nano.server.service import Service

WEIGHT_VERSION_MAX = (1 << 63) - 1


class Weights(Body):
    """`POST /admin/weights`: safetensors in a directory that the server can read."""

    path: Annotated[str, Field(min_length=1)]
    # A key of the prefix cache has 64 bits for it, one of them the sign.
    version: Annotated[int | None, Field(ge=1, le=WEIGHT_VERSION_MAX)] = None


class Pause(Body):
    """`POST /admin/pause`."""

    mode: Literal["abort", "wait", "keep"] = "keep"


class Sleep(Body):
    """`POST /admin/sleep`."""

    drop_weights: bool = False


class Nothing(Body):
    """Requests that say nothing but their path."""


class AdminApi:
    """The handlers."""

    def __init__(self, service: Service, key: Key | None) -> None:
        self._service = service
        self._key = key

    async def update_weights(self, request: Request) -> Response:
        """Compute with other weights from between two steps on."""
        body = parse_body(Weights, await self._let_in(request))
        loop, path = asyncio.get_running_loop(), Path(body.path)
        state_dict = await loop.run_in_executor(self._service.thread, read_state_dict, path)
        version = await self._service.engine.update_weights(state_dict, body.version)
        return answer({"weight_version": version})

    async def flush_cache(self, request: Request) -> Response:
        """Forget every prefix."""
        await self._let_in_without_a_word(request)
        await self._service.engine.flush_cache()
        return await self._state()

    async def pause(self, request: Request) -> Response:
        """Stop between two steps; answered when it has stopped."""
        body = parse_body(Pause, await self._let_in(request))
        await self._service.engine.pause(body.mode)
        return await self._state()

    async def resume(self, request: Request) -> Response:
        """Go on after a pause."""
        await self._let_in_without_a_word(request)
        await self._service.engine.resume()
        return await self._state()

    async def sleep(self, request: Request) -> Response:
        """Give memory back; nothing may be running."""
        body = parse_body(Sleep, await self._let_in(request))
        await self._service.engine.sleep(drop_weights=body.drop_weights)
        return await self._state()

    async def wake(self, request: Request) -> Response:
        """Be ready again after a sleep."""
        await self._let_in_without_a_word(request)
        await self._service.engine.wake()
        return await self._state()

    async def state(self, request: Request) -> Response:
        """What the engine does, and what its cache holds."""
        await self._let_in_without_a_word(request)
        return await self._state()

    async def _state(self) -> Response:
        stats = await self._service.engine.stats()
        return answer(
            {
                "state": self._service.engine.engine.state,
                "weight_version": stats.weight_version,
                "running": stats.num_running,
                "waiting": stats.num_waiting,
                "kv_blocks": {
                    "all": stats.num_blocks,
                    "free": stats.num_free_blocks,
                    "cached": stats.num_cached_blocks,
                },
            }
        )

    async def _let_in_without_a_word(self, request: Request) -> None:
        parse_body(Nothing, await self._let_in(request))

    async def _let_in(self, request: Request) -> bytes:
        """The body of a request that brings the key. Raises RefusedError before anything of it is read."""
        if self._key is None:
            message = "the server was started without a key for these paths: set --admin-key-env"
            raise RefusedError(Refusal(status=403, message=message, kind="permission_error"))
        self._key.require(request.headers)
        return await read_bytes(request) or b"{}"


Handler = Callable[[Request], Awaitable[Response]]


def build_app(
    service: Service,
    *,
    admin_key: str | None = None,
    api_key: str | None = None,
    budget: BodyBudget | None = None,
) -> FastAPI:
    """The application that serves `service`. Whoever made the engine also shuts it down.

    Without `admin_key` the paths of `/admin` are closed; without `api_key` all others are open.
    """
    tally = Tally()
    app = FastAPI(title="mac-serve", docs_url=None, redoc_url=None)
    _add_openai(app, OpenaiApi(service))
    _add_ollama(app, OllamaApi(service))
    _add_admin(app, AdminApi(service, None if admin_key is None else Key(admin_key)))
    watched = Watched(service, tally)
    app.add_api_route("/health", watched.health, methods=["GET"])
    app.add_api_route("/metrics", watched.metrics, methods=["GET"])
    app.add_exception_handler(NanoError, _refused)
    app.add_exception_handler(HTTPException, _not_here)
    app.add_exception_handler(Exception, _broken)
    # The middleware that is added last comes first.
    app.add_middleware(BodyGate, budget=budget or BodyBudget())
    if api_key is not None:
        app.add_middleware(KeyGate, key=Key(api_key))
    app.add_middleware(Counting, tally=tally)
    return app


def _add_openai(app: FastAPI, api: OpenaiApi) -> None:
    app.add_api_route("/v1/models", api.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", api.model, methods=["GET"])
    _add_body(app, "/v1/chat/completions", api.chat, ChatBody)
    _add_body(app, "/v1/completions", api.completions, CompletionBody)


def _add_ollama(app: FastAPI, api: OllamaApi) -> None:
    app.add_api_route("/api/version", api.version, methods=["GET"])
    app.add_api_route("/api/tags", api.tags, methods=["GET"])
    app.add_api_route("/api/ps", api.running, methods=["GET"])
    _add_body(app, "/api/show", api.show, ShowRequest)
    _add_body(app, "/api/chat", api.chat, ChatRequest)
    _add_body(app, "/api/generate", api.generate, GenerateRequest)


def _add_admin(app: FastAPI, api: AdminApi) -> None:
    app.add_api_route("/admin/state", api.state, methods=["GET"])
    _add_body(app, "/admin/weights", api.update_weights, Weights)
    app.add_api_route("/admin/cache/flush", api.flush_cache, methods=["POST"])
    _add_body(app, "/admin/pause", api.pause, Pause)
    app.add_api_route("/admin/resume", api.resume, methods=["POST"])
    _add_body(app, "/admin/sleep", api.sleep, Sleep)
    app.add_api_route("/admin/wake", api.wake, methods=["POST"])


def _add_body(app: FastAPI, path: str, handler: Handler, kind: type[Body]) -> None:
    """A path that takes a body. It is described for `/openapi.json`: bodies are read by us, not by the framework."""
    place = f"#/paths/{path.replace('/', '~1')}/post/requestBody/content/application~1json/schema/$defs/{{model}}"
    content = {"application/json": {"schema": kind.model_json_schema(ref_template=place)}}
    extra = {"requestBody": {"required": True, "content": content}}
    app.add_api_route(path, handler, methods=["POST"], openapi_extra=extra)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, NanoError)
    return refusal_answer(request.scope, refusal_of(error))


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return refusal_answer(request.scope, Refusal(status=error.status_code, message=message))


async def _broken(request: Request, error: Exception) -> Response:
    del error  # The server logs it; a client has no use for our insides.
    return refusal_answer(
        request.scope,
        Refusal(status=INTERNAL_ERROR_STATUS, message="an error in the server: see its log", kind="server_error"),
    )
