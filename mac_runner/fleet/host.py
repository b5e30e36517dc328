"""The control server of a fleet that `mac-run fleet up` holds.

It listens on 127.0.0.1, where other users of the machine and web pages can connect too. So a request is answered only
with the token of `fleet.json` in its header `Authorization`, with this server's own name in `Host`, and without an
`Origin`, which browsers add.

| request | body | answer |
|---|---|---|
| `GET /state?after=N&wait_s=S` | | the state, once its version is above N or after S seconds |
| `POST /start` | `model` | once a lane of the model is up |
| `POST /turn` | `model`, `agent` | the lane, in a line, once it is resident; the turn lasts as long as the connection |
| `POST /see` | `model`, `system` | at once |
| `POST /report` | `model`, `lane`, `kind`, `why` | at once |
| `POST /drain` | `lane` | once the lane is drained |
| `POST /undrain` | `lane` | at once |
| `POST /down` | | at once; the fleet then ends |
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final, Protocol

from mac_runner.backends.fleet.settings import ModelLanes
from mac_runner.errors import ConfigError, MacRunnerError
from mac_runner.fleet.model import LaneState, LaneStatus
from mac_runner.http_library import web
from mac_runner.types import JsonObject

WAIT_S_MAX: Final = 30.0
"""The longest that a request for the state may wait for news."""
EVENTS_MAX: Final = 1_000
"""So many of the latest events are kept for runs that ask for them."""
_BODY_BYTES_MAX: Final = 1 << 20
_SHUTDOWN_S: Final = 1.0
_BACKLOG: Final = 256
_DRAINED: Final = (LaneState.DRAINING, LaneState.DRAINED)


class Holdable(Protocol):
    """A fleet that can be held for others: `LocalFleet` is one."""

    def model(self, name: str) -> ModelLanes:
        """The lanes of one entry of `model_definitions`."""
        ...

    def status(self) -> tuple[LaneStatus, ...]:
        """All lanes."""
        ...

    async def drain(self, lane: str) -> None:
        """Give a lane no new requests, wait for those in flight, then stop it. The lane is not retired."""
        ...

    def ask_up(self, lane: str) -> None:
        """Start a lane again that was drained, or is being drained."""
        ...


def control_socket() -> socket.socket:
    """A socket on a free port of this machine, which listens."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.bind(("127.0.0.1", 0))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class FleetHost:
    """Serves a fleet to other processes of its user inside its `async with`.

    `on_down` is called when someone asks for the end of the fleet.
    """

    def __init__(
        self,
        fleet: Holdable,
        models: Sequence[str],
        listening: socket.socket,
        token: str,
        on_down: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._models = tuple(models)
        self._socket = listening
        self._token = token.encode()
        self._on_down = on_down
        port = listening.getsockname()[1]
        self._hosts = frozenset({f"127.0.0.1:{port}", f"localhost:{port}"})
        self._version = 1
        self._events: deque[tuple[int, str, JsonObject]] = deque(maxlen=EVENTS_MAX)
        self._news = asyncio.Event()
        self._runner = self._made()

    async def __aenter__(self) -> FleetHost:
        for name in self._models:
            self._fleet.model(name).on_change(self._changed)
        await self._runner.setup()
        await web.SockSite(self._runner, self._socket).start()
        return self

    async def __aexit__(self, *_fault: object) -> None:
        self._changed()
        await self._runner.cleanup()
        self._socket.close()

    def note(self, name: str, fields: Mapping[str, object]) -> None:
        """Keep an event of the fleet for the runs that use it."""
        known: JsonObject = {
            key: value if value is None or isinstance(value, str | int | float) else str(value)
            for key, value in fields.items()
        }
        self._events.append((self._version + 1, name, known))
        self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._news.set()
        self._news = asyncio.Event()

    # Requests.

    def _made(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._guarded], client_max_size=_BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/state", self._state),
                web.post("/start", self._start),
                web.post("/turn", self._turn),
                web.post("/see", self._see),
                web.post("/report", self._report),
                web.post("/drain", self._drain),
                web.post("/undrain", self._undrain),
                web.post("/down", self._down),
            ]
        )
        logger = logging.getLogger("mac_runner.fleet.host")
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        return web.AppRunner(
            app, access_log=None, logger=logger, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.headers.get("Host", "").lower() not in self._hosts or "Origin" in request.headers:
            return _refused(403, "this server answers mac-run alone")
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, b"Bearer " + self._token):
            return _refused(401, "the token is not that of this fleet: read its file again")
        try:
            return await handler(request)
        except web.HTTPException as fault:
            return _refused(fault.status, fault.reason)
        except ConfigError as fault:
            return _refused(400, str(fault))
        except MacRunnerError as fault:
            return _refused(409, str(fault))

    async def _state(self, request: web.Request) -> web.Response:
        after, wait_s = _number(request, "after"), _number(request, "wait_s")
        if after >= self._version:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, WAIT_S_MAX)):
                    await self._news.wait()
        state: JsonObject = {
            "version": self._version,
            "models": {name: _model(self._fleet.model(name)) for name in self._models},
            "lanes": [asdict(lane) for lane in self._fleet.status()],
            "events": [[name, fields] for version, name, fields in self._events if version > after],
        }
        return web.json_response(state)

    async def _start(self, request: web.Request) -> web.Response:
        (model,) = await _fields(request, "model")
        await self._lanes(model).start()
        return web.json_response({})

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        model, agent = await _fields(request, "model", "agent")
        lanes = self._lanes(model)
        async with lanes.turn(agent) as lane:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(f"{lane or ''}\n".encode())
            # The handler is cancelled when the connection ends.
            await asyncio.Event().wait()
        return response

    async def _see(self, request: web.Request) -> web.Response:
        model, system = await _fields(request, "model", "system")
        self._lanes(model).see(system)
        return web.json_response({})

    async def _report(self, request: web.Request) -> web.Response:
        model, lane, kind, why = await _fields(request, "model", "lane", "kind", "why")
        lanes = self._lanes(model)
        if lane not in {each.name for each in lanes.all}:
            raise ConfigError(f"{model!r} has no lane {lane!r}")
        if kind == "stuck":
            lanes.report_stuck(lane, why)
        elif kind == "broken":
            lanes.report_broken(lane, why)
        else:
            raise ConfigError(f"a report is of a lane that is stuck or broken, not {kind!r}")
        return web.json_response({})

    async def _drain(self, request: web.Request) -> web.Response:
        (lane,) = await _fields(request, "lane")
        if (known := self._status_of(lane)).state is LaneState.RETIRED:
            raise ConfigError(f"the lane {lane!r} is retired: {known.fault}; there is nothing to drain")
        await self._fleet.drain(lane)
        return web.json_response({})

    async def _undrain(self, request: web.Request) -> web.Response:
        (lane,) = await _fields(request, "lane")
        if (known := self._status_of(lane)).state not in _DRAINED:
            raise ConfigError(f"the lane {lane!r} was not drained: it is {known.state}")
        self._fleet.ask_up(lane)
        return web.json_response({})

    async def _down(self, request: web.Request) -> web.Response:
        await _fields(request)
        asyncio.get_running_loop().call_soon(self._on_down)
        return web.json_response({})

    def _lanes(self, model: str) -> ModelLanes:
        if model not in self._models:
            raise ConfigError(f"this fleet has no model {model!r}; it has {', '.join(self._models)}")
        return self._fleet.model(model)

    def _status_of(self, lane: str) -> LaneStatus:
        known = {each.name: each for each in self._fleet.status()}
        if lane not in known:
            raise ConfigError(f"this fleet has no lane {lane!r}; it has {', '.join(known)}")
        return known[lane]


def _model(lanes: ModelLanes) -> JsonObject:
    return {
        "up": [lane.name for lane in lanes.up],
        "all": [asdict(lane) for lane in lanes.all],
        "lost": lanes.lost,
        "is_swapped": lanes.is_swapped,
        "stall_s": lanes.stall_s,
    }


async def _fields(request: web.Request, *names: str) -> tuple[str, ...]:
    """The values of the body, a JSON object that has exactly these texts. Raises ConfigError."""
    try:
        body = await request.json() if request.can_read_body else {}
    except (ValueError, RecursionError) as fault:
        raise ConfigError(f"the body is not JSON: {fault}") from fault
    if not isinstance(body, dict) or set(body) != set(names) or not all(isinstance(body[name], str) for name in names):
        raise ConfigError(f"the body is a JSON object with the texts: {', '.join(names) or 'none'}")
    return tuple(body[name] for name in names)


def _number(request: web.Request, name: str) -> float:
    """A parameter that is a number from 0. Raises ConfigError."""
    text = request.query.get(name, "0")
    if not (text.isascii() and text.replace(".", "", 1).isdecimal()):
        raise ConfigError(f"{name} is a number from 0")
    return float(text)


def _refused(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
