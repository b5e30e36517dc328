"""The server of the pages: routes over a `RunSource`, behind the guard.

Whatever reads or computes runs in one worker thread, so the loop answers and streams meanwhile. The files of the front
end are read once, at the start; a request chooses among them by name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, TypeVar

from yarl import URL

from mac_runner.clock import Clock, SystemClock
from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.http_library import aiohttp, web
from mac_runner.threads import DaemonExecutor
from mac_runner.viewer.follower import NotThereError
from mac_runner.viewer.guard import HEADERS, TOKEN, Asked, Guard, Opening, allowed_hosts, url_of
from mac_runner.viewer.live import Cursor, Live, Pace, cursor_of
from mac_runner.viewer.packing import Body, body_of, packed_body, static_file
from mac_runner.viewer.search import search
from mac_runner.viewer.source import Recent, RunSource

T = TypeVar("T")

_KINDS: Final[Mapping[str, str]] = {"app.js": "text/javascript", "app.css": "text/css", "index.html": "text/html"}
_PAGE: Final = "index.html"
_BODIES_MAX: Final = 8
_SHUTDOWN_S: Final = 1.0
_JSON: Final = "application/json"
_DIGITS_MAX: Final = 15


class Parameters:
    """The parameters of a request: those that are `known`.

    Raises ConfigError for what is unknown, given twice, missing or not a number.
    """

    def __init__(self, request: web.Request, *known: str) -> None:
        self._query = request.query
        self._match = request.match_info
        for name in self._query:
            if name not in known:
                raise ConfigError(f"there is no parameter {name!r:.60}; there are: {', '.join(known) or 'none'}")
            if len(self._query.getall(name)) > 1:
                raise ConfigError(f"the parameter {name!r} is given twice")

    @property
    def slug(self) -> str:
        """The combination that is asked for; empty for none."""
        return self.text("run")

    def text(self, name: str) -> str:
        return self._query.get(name, "")

    def needed(self, name: str) -> str:
        if not (text := self.text(name)):
            raise ConfigError(f"the parameter {name!r} is missing")
        return text

    def count(self, name: str) -> int:
        """A whole number from 0, which is also what a missing one means."""
        text = self.text(name) or "0"
        if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
            raise ConfigError(f"the parameter {name!r} is a whole number, not {text!r:.60}")
        return int(text)

    @property
    def version(self) -> int | None:
        """The version of the list that the page has; None where it does not say."""
        return self.count("version") if self.text("version") else None

    def path(self, name: str) -> str:
        """A part of the path, decoded."""
        return self._match[name]


class Viewer:
    """A server of one source inside its `async with`."""

    def __init__(
        self, source: RunSource, opening: Opening, *, clock: Clock | None = None, pace: Pace | None = None
    ) -> None:
        host, port = opening.socket.getsockname()[:2]
        self._source = source
        self._opening = opening
        self._guard = Guard(port, opening.token, allowed_hosts(host, port, opening.names))
        self._static = {name: packed_body(static_file(name)) for name in _KINDS}
        self._clock = clock or SystemClock()
        self._worker, self._engines_worker = DaemonExecutor(1, "viewer"), DaemonExecutor(1, "viewer-engines")
        self._live = Live(source, self._at_work, self._at_engines, self._clock, pace)
        self._reading: asyncio.Task[None] | None = None
        self._bodies = Recent[str, tuple[object, Body]](_BODIES_MAX)
        app = web.Application(middlewares=[self._guarded])
        app.on_response_prepare.append(_with_headers)
        app.add_routes(self._routes())
        self._runner = web.AppRunner(
            app, access_log=None, logger=_logger(), handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )

    @property
    def url(self) -> str:
        """What to open in a browser; the token is part of it."""
        return url_of(self._opening.socket, self._opening.token)

    async def __aenter__(self) -> Viewer:
        await self._runner.setup()
        self._opening.socket.setblocking(False)
        await web.SockSite(self._runner, self._opening.socket).start()
        self._read_on()
        return self

    async def __aexit__(self, *_fault: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await self._live.close()
        await self._runner.cleanup()
        self._worker.submit(self._source.let_go)
        self._worker.shutdown(wait=False)
        self._engines_worker.shutdown(wait=False)

    # Requests.

    def _routes(self) -> list[web.RouteDef]:
        source = self._source
        return [
            web.get("/", self._file),
            web.get("/static/{name:app[.](?:js|css)}", self._file),
            self._json("/api/run", lambda asked: source.run(asked.slug)),
            self._json(
                "/api/index",
                lambda asked: source.index(asked.slug, asked.count("since"), asked.version),
                *("since", "version"),
            ),
            self._json(
                "/api/c/{n}", lambda asked: source.conversation(asked.slug, asked.path("n"), asked.text("seat")), "seat"
            ),
            self._json(
                "/api/c/{n}/turn/{key}",
                lambda asked: source.turn(asked.slug, asked.path("n"), asked.path("key"), asked.text("seat")),
                "seat",
            ),
            self._json(
                "/api/compare",
                lambda asked: source.compare(
                    asked.slug, asked.needed("left"), asked.needed("right"), asked.text("other")
                ),
                *("left", "right", "other"),
            ),
            self._json("/api/forks", lambda asked: source.forks(asked.slug, asked.text("n")), "n", is_of_all=True),
            self._json("/api/flow", lambda asked: source.flow(asked.slug, asked.text("only")), "only", is_of_all=True),
            web.get("/api/engines", self._engines),
            web.get("/api/search", self._search),
            web.get("/api/stream", self._stream),
        ]

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        asked = _asked(request)
        if (refusal := self._guard.refusal(asked)) is not None:
            return _error(refusal.status, refusal.text)
        if self._guard.is_greeting(asked):
            return self._welcome()
        try:
            return await handler(request)
        except web.HTTPException as fault:
            return _error(fault.status, f"{HTTPStatus(fault.status).phrase.lower()}: {request.path!r:.100}")
        except MacRunnerError as fault:
            is_wrong = isinstance(fault, ConfigError) and not isinstance(fault, NotThereError)
            return _error(400 if is_wrong else 404, str(fault))

    def _welcome(self) -> web.Response:
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._guard.cookie, self._opening.token, httponly=True, samesite="Strict", path="/")
        return response

    async def _file(self, request: web.Request) -> web.Response:
        Parameters(request)
        name = request.match_info.get("name", _PAGE)
        return _response(request, self._static[name], _KINDS[name])

    def _json(
        self, path: str, work: Callable[[Parameters], object], *names: str, is_of_all: bool = False
    ) -> web.RouteDef:
        """A route that answers with the JSON of what `work` returns; `names` are its parameters beside `run`.

        What is of all conversations (`is_of_all`) waits until the run is read.
        """

        async def handler(request: web.Request) -> web.Response:
            asked = Parameters(request, "run", *names)
            if is_of_all:
                await self._read_whole(asked.slug)
            return _response(request, await self._at_work(lambda: self._body(request.path_qs, work(asked))), _JSON)

        return web.get(path, handler)

    async def _read_whole(self, slug: str) -> None:
        while await self._at_work(lambda: self._source.is_reading(slug)) and not self._live.is_closing:
            await asyncio.shield(self._read_on())

    def _body(self, name: str, value: object) -> Body:
        """The body for a value. One that was asked for lately and is the same object is not made again."""
        known = self._bodies.get(name)
        if known is None or known[0] is not value:
            known = self._bodies.put(name, (value, body_of(value)))
        return known[1]

    async def _engines(self, request: web.Request) -> web.Response:
        slug = Parameters(request, "run").slug
        return _response(request, await self._at_engines(lambda: body_of(self._source.engines(slug))), _JSON)

    async def _search(self, request: web.Request) -> web.Response:
        asked = Parameters(request, "run", "q", "from")
        words, start = asked.text("q"), asked.count("from")
        await self._read_whole(asked.slug)
        texts = await self._at_work(lambda: self._source.texts(asked.slug))
        return _response(request, body_of(await search(texts, words, start=start, clock=self._clock)), _JSON)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        asked = Parameters(request, "run", "since", "version")
        slug, since, version = asked.slug, asked.count("since"), asked.version
        cursor = Cursor(version, since) if version is not None else cursor_of(request.headers.get("Last-Event-ID", ""))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        # A page may leave at any time, before the head of the answer too.
        with suppress(ConnectionError):
            await response.prepare(request)
            if request.method == "HEAD":
                return response
            async with self._live.events(slug, cursor) as events:
                async for event in events:
                    await response.write(event)
        return response

    async def _at_work(self, call: Callable[[], T]) -> T:
        try:
            return await self._in_worker(call)
        finally:
            if not self._live.is_closing:
                # There may be more of it to read.
                self._read_on()

    def _in_worker(self, call: Callable[[], T]) -> Awaitable[T]:
        return asyncio.get_running_loop().run_in_executor(self._worker, call)

    def _read_on(self) -> asyncio.Task[None]:
        """Read what was not read yet, part by part, between requests."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_all())
        return self._reading

    async def _read_all(self) -> None:
        while not self._live.is_closing and await self._in_worker(self._source.read_on):
            pass

    async def _at_engines(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._engines_worker, call)


def _logger() -> logging.Logger:
    """The log of the server: our own faults, and not requests that are not HTTP."""
    logger = logging.getLogger(__name__)
    logger.addFilter(_is_own_fault)
    return logger


def _is_own_fault(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], aiohttp.http_exceptions.HttpProcessingError)


def _asked(request: web.Request) -> Asked:
    headers: dict[str, list[str]] = {}
    for name, value in request.headers.items():
        headers.setdefault(name.lower(), []).append(value)
    target = request.raw_path
    tokens = request.query.getall(TOKEN, []) if URL(target, encoded=True).path == "/" else []
    return Asked(request.method, target, headers, request.cookies, tokens)


def _response(request: web.Request, body: Body, kind: str) -> web.Response:
    headers = {"ETag": body.tag, "Vary": "Accept-Encoding", "Content-Type": f"{kind}; charset=utf-8"}
    if request.headers.get("If-None-Match") == body.tag:
        return web.Response(status=304, headers={"ETag": body.tag})
    if body.packed and "gzip" in request.headers.get("Accept-Encoding", "").lower():
        return web.Response(body=body.packed, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=body.plain, headers=headers)


def _error(status: int, text: str) -> web.Response:
    response = web.Response(
        status=status, body=body_of({"error": text}).plain, headers={"Content-Type": f"{_JSON}; charset=utf-8"}
    )
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        response.headers["Allow"] = "GET, HEAD"
    return response


async def _with_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
