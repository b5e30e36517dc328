"""Requests to the control server of a fleet that `mac-run fleet up` holds."""

from __future__ import annotations

import json
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from mac_runner.backends.fleet.settings import LaneAddress
from mac_runner.errors import ConfigError, EngineDeadError, MacRunnerError
from mac_runner.fleet.held import HeldFleet
from mac_runner.fleet.model import LaneStatus
from mac_runner.http_library import aiohttp
from mac_runner.printable import printable
from mac_runner.structs import convert
from mac_runner.types import JsonObject

_CONNECT_S: Final = 10.0
_GONE: Final = (aiohttp.ClientError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """The lanes of one model."""

    up: tuple[str, ...]
    all: tuple[LaneAddress, ...]
    lost: str | None
    is_swapped: bool
    stall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetState:
    """What the holder says of its fleet."""

    version: int
    models: dict[str, ModelState]
    lanes: tuple[LaneStatus, ...]
    events: tuple[tuple[str, dict[str, Any]], ...]


class FleetGoneError(EngineDeadError):
    """The process that holds the fleet has ended, or does not answer."""


class FleetClient:
    """Talks to the holder of a fleet inside its `async with`."""

    def __init__(self, held: HeldFleet, path: Path) -> None:
        self.held = held
        self.path = path
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> FleetClient:
        self._session = aiohttp.ClientSession(
            base_url=self.held.control,
            headers={"Authorization": f"Bearer {self.held.token}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _fault: BaseException | None, _trace: TracebackType | None
    ) -> None:
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
    async def turn(self, model: str, agent: str) -> AsyncIterator[str | None]:
        """A turn of a swapped model, with the lane that the request must go to."""
        try:
            response = await self._open("POST", "/turn", {"model": model, "agent": agent})
        except _GONE as fault:
            raise self.gone(fault) from fault
        try:
            try:
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                line = await response.content.readline()
            except _GONE as fault:
                raise self.gone(fault) from fault
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
        try:
            response = await self._open(method, path, fields)
            async with response:
                body = await response.read()
        except _GONE as fault:
            raise self.gone(fault) from fault
        if response.status != 200:
            raise _refusal(response.status, body)
        return _object(body)

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
