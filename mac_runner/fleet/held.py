"""Fleets that outlive runs: their file, the control server of the process that holds one, and those who use it.

`fleet.json` is what `mac-run fleet up` leaves for others; who can read it can control the fleet. The server listens on
127.0.0.1, where other users of the machine and web pages can connect too. So a request is answered only with the token
of `fleet.json` in its header `Authorization`, with this server's own name in `Host`, and without an `Origin`, which
browsers add.

| request | body | answer |
|---|---|---|
| `GET /state?after=N&wait_s=S` | | the state, once its version is above N or after S seconds |
| `POST /start` | `model` | once a lane of the model is up |
| `POST /turn` | `model` | the lane, in a line, once it is resident; the turn lasts as long as the connection |
| `POST /see` | `model`, `system` | at once |
| `POST /stuck` | `model`, `lane`, `why` | at once |
| `POST /drain` | `lane` | once the lane is drained |
| `POST /undrain` | `lane` | at once |
| `POST /down` | | at once; the fleet then ends |
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import platform
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self

from mac_runner.backends.fleet.settings import FleetModelConfig, LaneAddress, ModelLanes
from mac_runner.clock import Clock
from mac_runner.errors import ConfigError, EngineDeadError, MacRunnerError
from mac_runner.files import read_regular
from mac_runner.fleet.engine_process import CommonPrefix
from mac_runner.fleet.lane import Fleet, LaneState, LaneStatus, OnEvent, no_events
from mac_runner.http_library import aiohttp, web
from mac_runner.printable import printable
from mac_runner.structs import convert
from mac_runner.types import JsonObject

FORMAT: Final = "mac_runner.fleet/2"
_CONTROL: Final = re.compile(r"http://127\.0\.0\.1:[0-9]{1,5}")
"""The token is sent to this machine alone."""
_FILE_BYTES_MAX: Final = 16_000_000
_COMPARED: Final = ("model", "engine", "dialect", "engine_args", "chat_template_sha256")
WAIT_S_MAX: Final = 30.0
"""The longest that a request for the state may wait for news."""
EVENTS_MAX: Final = 1_000
"""So many of the latest events are kept for runs that ask for them."""
_BODY_BYTES_MAX: Final = 1 << 20
_SHUTDOWN_S: Final = 1.0
_BACKLOG: Final = 256
_CONNECT_S: Final = 10.0
_POLL_S: Final = 2.0
"""How old the figures of lanes may be; what concerns requests comes at once."""
_RETRY_S: Final = 0.2
_PREFIX_CHARS_MAX: Final = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldModel:
    """One entry of `model_definitions` as the fleet serves it."""

    model: str
    engine: str
    dialect: str
    """What its engines understand: `openai` or `vllm`."""
    engine_args: dict[str, Any]
    chat_template_sha256: str
    base_urls: tuple[str, ...]
    """The servers of its lanes, for `openai_config.base_urls`."""
    slots: int
    """How many requests its lanes serve at once."""
    takes_turns: bool
    """Whether its lanes sleep now and then, so that only runs with `--fleet` can use it."""

    @classmethod
    def of(cls, config: FleetModelConfig, lanes: ModelLanes) -> HeldModel:
        return cls(
            model=config.model,
            engine=config.engine,
            dialect=config.dialect,
            engine_args=dict(config.engine_args),
            chat_template_sha256=config.chat_template_sha256,
            base_urls=tuple(lane.url for lane in lanes.all),
            slots=sum(lane.slots for lane in lanes.all),
            takes_turns=lanes.is_swapped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldFleet:
    """The contents of the file."""

    format: str = FORMAT
    pid: int
    host: str
    """The name of the machine, for people."""
    started_at: str
    command: str
    control: str
    """The address of the control server."""
    token: str = field(repr=False)
    models: dict[str, HeldModel]

    def encoded(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode("ascii") + b"\n"

    def serving(self, name: str, wanted: FleetModelConfig) -> str:
        """The model of the fleet that serves `wanted`, an entry of `model_definitions` of this name.

        That of the same name comes first, then any other that agrees. Raises ConfigError saying what differs.
        """
        names = [name, *self.models] if name in self.models else [*self.models]
        for each in names:
            if not _differences(self.models[each], wanted):
                return each
        where = f"the fleet of pid {self.pid}"
        if name not in self.models:
            serves = ", ".join(f"{each} ({model.model} on {model.engine})" for each, model in self.models.items())
            raise ConfigError.at(
                ("model_definitions", name),
                f"{where} does not serve {wanted.model!r} on {wanted.engine!r}; it serves {serves}. "
                "Start a fleet from this experiment with mac-run fleet up, or leave --fleet out",
            )
        raise ConfigError.at(
            ("model_definitions", name, "fleet_config"),
            f"{where} has {'; '.join(_differences(self.models[name], wanted))}. Write the same here, or start a fleet "
            "from this experiment with mac-run fleet up",
        )


def read_held(path: Path) -> HeldFleet:
    """The fleet that a file describes. Raises ConfigError for a file that is not there, not ours or not readable."""
    try:
        data = read_regular(path, _FILE_BYTES_MAX)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no fleet: {path} is not there; start one with mac-run fleet up EXPERIMENT, or name its file"
        ) from None
    except PermissionError as fault:
        raise ConfigError(
            f"{path} cannot be read: it belongs to another user, whose fleet this is; start one of your own with "
            "mac-run fleet up EXPERIMENT --out FILE"
        ) from fault
    except OSError as fault:
        raise ConfigError(f"{path} cannot be read: {fault.strerror or fault}; name the file of a fleet") from fault
    try:
        raw = json.loads(data)
        found = raw.get("format") if isinstance(raw, dict) else None
        if found != FORMAT:
            raise ValueError(f"its format is {found!r:.60} and not {FORMAT!r}")
        held = convert(raw, HeldFleet)
        if _CONTROL.fullmatch(held.control) is None:
            raise ValueError(f"{held.control!r} is not the address of a control server on this machine")
        return held
    except (ValueError, RecursionError) as fault:
        words = printable(str(fault))[:200]
        raise ConfigError(
            f"{path} does not describe a fleet: {words}; name the file that mac-run fleet up of this version wrote"
        ) from fault


def _differences(held: HeldModel, wanted: FleetModelConfig) -> list[str]:
    pairs = ((key, getattr(held, key), getattr(wanted, key)) for key in _COMPARED)
    shown = partial(json.dumps, default=dict)
    return [
        printable(f"{key} {shown(there)} where this experiment has {shown(here)}")
        for key, there, here in pairs
        if there != here
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """The lanes of one model."""

    up: tuple[str, ...]
    all: tuple[LaneAddress, ...]
    lost: str | None
    is_swapped: bool
    stall_s: float

    @classmethod
    def of(cls, lanes: ModelLanes) -> ModelState:
        """What other processes hear of lanes: without the key of their engines' `/admin` paths."""
        return cls(
            up=tuple(lane.name for lane in lanes.up),
            all=tuple(replace(lane, admin_key=None) for lane in lanes.all),
            lost=lanes.lost,
            is_swapped=lanes.is_swapped,
            stall_s=lanes.stall_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """What the holder says of its fleet."""

    version: int
    models: dict[str, ModelState]
    lanes: tuple[LaneStatus, ...]
    events: tuple[tuple[str, dict[str, Any]], ...]


class Holdable(Fleet, Protocol):
    """A fleet that can be held for others: `LocalFleet` is one."""

    async def drain(self, lane: str) -> None:
        """Give a lane no new requests, wait for those in flight, then stop it. The lane is not retired."""

    def ask_up(self, lane: str) -> None:
        """Start a lane again that was drained, or is being drained."""


class FleetHost:
    """Serves a fleet to other processes of its user inside its `async with`.

    `on_down` is called when someone asks for the end of the fleet.
    """

    def __init__(
        self,
        fleet: Holdable,
        models: Sequence[str],
        token: str,
        on_down: Callable[[], None],
    ) -> None:
        self._fleet = fleet
        self._models = tuple(models)
        self._token = token.encode()
        self._on_down = on_down
        self.port = 0
        """Of 127.0.0.1, inside its `async with`."""
        self._version = 1
        self._events: deque[tuple[int, str, JsonObject]] = deque(maxlen=EVENTS_MAX)
        self._news = asyncio.Event()
        self._acts: Mapping[str, tuple[tuple[str, ...], Callable[..., Awaitable[None]]]] = {
            "/start": (("model",), self._start),
            "/see": (("model", "system"), self._see),
            "/stuck": (("model", "lane", "why"), self._stuck),
            "/drain": (("lane",), self._drain),
            "/undrain": (("lane",), self._undrain),
            "/down": ((), self._down),
        }
        """By path, the fields of the body, and what takes them."""
        self._runner = self._made()

    async def __aenter__(self) -> Self:
        for name in self._models:
            self._fleet.model(name).on_change(self._changed)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=_BACKLOG).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_fault: object) -> None:
        self._changed()
        await self._runner.cleanup()

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

    # Requests

    def _made(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._guarded], client_max_size=_BODY_BYTES_MAX)
        app.add_routes([web.get("/state", self._state), web.post("/turn", self._turn)])
        app.add_routes([web.post(path, self._act) for path in self._acts])
        logger = logging.getLogger(__name__)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
        return web.AppRunner(
            app, access_log=None, logger=logger, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
        )

    @web.middleware
    async def _guarded(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        if request.headers.get("Host", "").lower() not in hosts or "Origin" in request.headers:
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
            "models": {name: asdict(ModelState.of(self._fleet.model(name))) for name in self._models},
            "lanes": [asdict(lane) for lane in self._fleet.status()],
            "events": [[name, fields] for version, name, fields in self._events if version > after],
        }
        return web.json_response(state)

    async def _turn(self, request: web.Request) -> web.StreamResponse:
        (model,) = await _fields(request, "model")
        async with self._lanes(model).turn() as lane:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(f"{lane or ''}\n".encode())
            # The handler is cancelled when the connection ends.
            await asyncio.Event().wait()
        return response

    async def _act(self, request: web.Request) -> web.Response:
        names, act = self._acts[request.path]
        await act(*await _fields(request, *names))
        return web.json_response({})

    async def _start(self, model: str) -> None:
        await self._lanes(model).start()

    async def _see(self, model: str, system: str) -> None:
        self._lanes(model).see(system)

    async def _stuck(self, model: str, lane: str, why: str) -> None:
        lanes = self._lanes(model)
        if lane not in {each.name for each in lanes.all}:
            raise ConfigError(f"{model!r} has no lane {lane!r}")
        lanes.report_stuck(lane, why)

    async def _drain(self, lane: str) -> None:
        if (known := self._status_of(lane)).state is LaneState.RETIRED:
            raise ConfigError(f"the lane {lane!r} is retired: {known.fault}; there is nothing to drain")
        await self._fleet.drain(lane)

    async def _undrain(self, lane: str) -> None:
        if (known := self._status_of(lane)).state not in (LaneState.DRAINING, LaneState.DRAINED):
            raise ConfigError(f"the lane {lane!r} was not drained: it is {known.state}")
        self._fleet.ask_up(lane)

    async def _down(self) -> None:
        asyncio.get_running_loop().call_soon(self._on_down)

    def _lanes(self, model: str) -> ModelLanes:
        if model not in self._models:
            raise ConfigError(f"this fleet has no model {model!r}; it has {', '.join(self._models)}")
        return self._fleet.model(model)

    def _status_of(self, lane: str) -> LaneStatus:
        known = {each.name: each for each in self._fleet.status()}
        if lane not in known:
            raise ConfigError(f"this fleet has no lane {lane!r}; it has {', '.join(known)}")
        return known[lane]


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


class FleetGoneError(EngineDeadError):
    """The process that holds the fleet has ended, or does not answer."""


class FleetClient:
    """Talks to the holder of a fleet inside its `async with`."""

    def __init__(self, held: HeldFleet, path: Path) -> None:
        self.held = held
        self.path = path
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            base_url=self.held.control,
            headers={"Authorization": f"Bearer {self.held.token}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )
        return self

    async def __aexit__(self, *_fault: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def state(self, *, after: int = 0, wait_s: float = 0.0) -> FleetState:
        """The state of the fleet, once its version is above `after` or the wait is over."""
        found = await self._asked("GET", f"/state?after={after}&wait_s={wait_s}", None)
        try:
            return convert(found, FleetState)
        except ValueError as fault:
            raise EngineDeadError(f"the fleet's control server gave a state of another form: {fault}") from fault

    async def post(self, path: str, **fields: str) -> None:
        """Ask for something to be done. Raises ConfigError or EngineDeadError with the holder's words."""
        await self._asked("POST", path, fields)

    @asynccontextmanager
    async def turn(self, model: str) -> AsyncIterator[str | None]:
        """A turn of a swapped model, with the lane that the request must go to."""
        with self._reaching():
            response = await self._open("POST", "/turn", {"model": model})
        try:
            with self._reaching():
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                line = await response.content.readline()
            if not line.endswith(b"\n"):
                raise self.gone(EOFError("the connection ended"))
            yield line.decode("utf-8", "replace").strip() or None
        finally:
            response.close()

    def gone(self, fault: BaseException) -> FleetGoneError:
        """The error for a holder that is not there."""
        words = printable(str(fault) or type(fault).__name__)[:200]
        if self.held.host != platform.node():
            return FleetGoneError(
                f"the fleet of {self.path} is on the machine {printable(self.held.host)}, and only processes there can "
                "use it; run the command there, or start a fleet here"
            )
        return FleetGoneError(
            f"the fleet of {self.path} has ended or does not answer (pid {self.held.pid}: {words}); start it again "
            "with mac-run fleet up, then the same command goes on"
        )

    async def _asked(self, method: str, path: str, fields: dict[str, str] | None) -> JsonObject:
        with self._reaching():
            async with await self._open(method, path, fields) as response:
                body = await response.read()
        if response.status != 200:
            raise _refusal(response.status, body)
        return _object(body)

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (aiohttp.ClientError, OSError) as fault:
            raise self.gone(fault) from fault

    async def _open(self, method: str, path: str, fields: dict[str, str] | None) -> aiohttp.ClientResponse:
        assert self._session is not None, "used inside its `async with`"
        return await self._session.request(method, path, json=fields)


def _object(body: bytes) -> JsonObject:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        words = printable(body.decode("utf-8", "replace"))[:100]
        raise EngineDeadError(f"the fleet's control server answered with something else: {words}")
    return found


def _refusal(status: int, body: bytes) -> MacRunnerError:
    text = str(_object(body).get("error", f"status {status}"))
    return EngineDeadError(text) if status == 409 else ConfigError(text)


class AttachedFleet(FleetClient):
    """The lanes of the fleet that `path` describes, for the models that a run wants, inside its `async with`.

    The state comes by long polls, so a change of a lane is known at once. When the holder ends, its connection does
    too, and `lost` says so, as when something else answers at its address. A holder that lives but does not answer
    changes nothing: its lanes may well serve.

    Raises ConfigError at once for a file that is not a fleet's, or a model that the fleet does not serve as wanted.
    """

    def __init__(
        self,
        path: Path,
        wanted: Mapping[str, FleetModelConfig],
        *,
        clock: Clock,
        on_event: OnEvent = no_events,
    ) -> None:
        super().__init__(read_held(path), path)
        self._clock = clock
        self._on_event = on_event
        self._models = {name: AttachedLanes(self.held.serving(name, config), self) for name, config in wanted.items()}
        self._served = {lanes.served_as for lanes in self._models.values()}
        self._status: tuple[LaneStatus, ...] = ()
        self._version = 0
        self._polling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        try:
            self._adopt(await self.state())
            self._note_up()
        except BaseException:
            await super().__aexit__()
            raise
        self._polling = asyncio.create_task(self._poll(), name="fleet poll")
        return self

    async def __aexit__(self, *_fault: object) -> None:
        if self._polling is not None:
            self._polling.cancel()
            with suppress(asyncio.CancelledError):
                await self._polling
        for task in [task for lanes in self._models.values() for task in lanes.posts]:
            task.cancel()
        await super().__aexit__()

    def model(self, name: str) -> AttachedLanes:
        return self._models[name]

    def status(self) -> tuple[LaneStatus, ...]:
        return self._status

    async def _poll(self) -> None:
        misses = 0
        while True:
            try:
                state = await self.state(after=self._version, wait_s=_POLL_S)
            except (ConfigError, EngineDeadError) as fault:
                # A kept connection may have been closed between two polls: the next one is new. What answers in
                # another way than a holder does is somebody else.
                misses += 1
                if misses > 1:
                    gone = fault if isinstance(fault, FleetGoneError) else self.gone(fault)
                    for lanes in self._models.values():
                        lanes.lose(gone.words)
                    return
                await self._clock.sleep(_RETRY_S)
                continue
            misses = 0
            for name, fields in state.events:
                if fields.get("model") in self._served:
                    self._on_event(name, fields)
            self._adopt(state)

    def _note_up(self) -> None:
        """Events for the lanes that are up already."""
        places = {lane.name: lane.place for lane in self._status}
        for lanes in {lanes.served_as: lanes for lanes in self._models.values()}.values():
            for lane in lanes.up:
                fields: JsonObject = {"lane": lane.name, "model": lanes.served_as, "place": places.get(lane.name)}
                self._on_event("EVENT_LANE_UP", {**fields, "gpu": lane.gpu})

    def _adopt(self, state: FleetState) -> None:
        self._version = state.version
        self._status = state.lanes
        for lanes in self._models.values():
            lanes.show(state.models[lanes.served_as])


class AttachedLanes(ModelLanes):
    """The lanes of one model; `served_as` is its name in the fleet."""

    def __init__(self, served_as: str, client: FleetClient) -> None:
        super().__init__(is_swapped=False, stall_s=1.0)  # Until the first state is there.
        self.served_as = served_as
        self._client = client
        self._prefix = CommonPrefix()
        self.posts: set[asyncio.Task[None]] = set()
        """Words to the holder that have not arrived."""

    async def start(self) -> None:
        """Wait until a lane is up, or, of a model that takes turns, until one has been."""
        await self._client.post("/start", model=self.served_as)
        changed = asyncio.Event()
        self.on_change(changed.set)
        while not (self.up or self.is_swapped) and self.lost is None:
            await changed.wait()
            changed.clear()
        if self.lost is not None:
            raise EngineDeadError(self.lost)

    def turn(self) -> AbstractAsyncContextManager[str | None]:
        return self._client.turn(self.served_as) if self.is_swapped else nullcontext()

    def see(self, system: str) -> None:
        before = self._prefix.text
        self._prefix.see(system)
        if self._prefix.text and self._prefix.text != before:
            self._post("/see", system=self._prefix.text[:_PREFIX_CHARS_MAX])

    def report_stuck(self, lane: str, why: str) -> None:
        self._post("/stuck", lane=lane, why=why)

    def show(self, state: ModelState) -> None:
        self.is_swapped, self.stall_s = state.is_swapped, state.stall_s
        self.adopt(state.up, state.all, state.lost)

    def lose(self, why: str) -> None:
        """The holder has ended."""
        self.adopt((), (), self.lost or why)

    def _post(self, path: str, **fields: str) -> None:
        task = asyncio.create_task(self._send(path, fields))
        self.posts.add(task)
        task.add_done_callback(self.posts.discard)

    async def _send(self, path: str, fields: dict[str, str]) -> None:
        # A holder that has ended is noticed by the poll; a lane that has retired meanwhile needs no report.
        with suppress(EngineDeadError, ConfigError):
            await self._client.post(path, model=self.served_as, **fields)
