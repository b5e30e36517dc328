"""The application: which path is answered by whom, and how errors are told in each protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mac_runner.nano.errors import NanoError
from mac_runner.nano.server.admin_api import AdminApi, Pause, Sleep, Weights
from mac_runner.nano.server.bodies import Body
from mac_runner.nano.server.body_budget import BodyBudget
from mac_runner.nano.server.gates import BodyGate, KeyGate
from mac_runner.nano.server.health import Health, ProgressWatch
from mac_runner.nano.server.keys import Key
from mac_runner.nano.server.limits import ENGINE_ANSWER_S_MAX, LOOK_AGAIN_S
from mac_runner.nano.server.metrics import CONTENT_TYPE, Tally, exposition
from mac_runner.nano.server.ollama_api import OllamaApi
from mac_runner.nano.server.ollama_requests import ChatRequest, GenerateRequest, ShowRequest
from mac_runner.nano.server.openai_api import OpenaiApi
from mac_runner.nano.server.openai_requests import ChatBody, CompletionBody
from mac_runner.nano.server.refusal_answers import refusal_answer
from mac_runner.nano.server.refusals import CLIENT_GONE_STATUS, INTERNAL_ERROR_STATUS, Refusal, refusal_of
from mac_runner.nano.server.service import Service
from mac_runner.nano.server.wire import answer

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
    watched = _Watched(service, tally)
    app.add_api_route("/health", watched.health, methods=["GET"])
    app.add_api_route("/metrics", watched.metrics, methods=["GET"])
    app.add_exception_handler(NanoError, _refused)
    app.add_exception_handler(HTTPException, _not_here)
    app.add_exception_handler(Exception, _broken)
    # The middleware that is added last comes first.
    app.add_middleware(BodyGate, budget=budget or BodyBudget())
    if api_key is not None:
        app.add_middleware(KeyGate, key=Key(api_key))
    app.add_middleware(_Counting, tally=tally)
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


class _Watched:
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


class _Counting:
    """Counts answers, by the path as the application knows it: what clients make up does not fill the memory."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app = app
        self._tally = tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
