"""What the owner of the server may do to the engine while it serves: `/admin/…`, behind a key.

Without a key configured there is no such owner, and the paths are closed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import Field

from mac_runner.nano.server.bodies import Body, parse_body
from mac_runner.nano.server.keys import Key
from mac_runner.nano.server.limits import WEIGHT_VERSION_MAX
from mac_runner.nano.server.refusals import Refusal, RefusedError
from mac_runner.nano.server.service import Service
from mac_runner.nano.server.wire import answer, read_bytes
from mac_runner.nano.weights import read_state_dict


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
