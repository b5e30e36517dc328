"""An application on a socket: uvicorn, told when to stop by us and not by signals of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from typing import Any

import uvicorn
from fastapi import FastAPI

from mac_runner.nano.server.descriptors import Listener
from mac_runner.nano.server.limits import BACKLOG, IDLE_S_MAX, SHUTDOWN_ANSWER_S, SHUTDOWN_GRACE_S


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, which nobody can connect to yet. Raises OSError."""
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    return listener


@asynccontextmanager
async def serving(
    app: FastAPI,
    listener: socket.socket,
    *,
    connections_max: int,
    give_up: Callable[[], Awaitable[None]],
    grace_s: float = SHUTDOWN_GRACE_S,
    idle_s_max: float = IDLE_S_MAX,
) -> AsyncIterator[None]:
    """Answer who connects, and hang up on who asks for nothing for `idle_s_max` seconds.

    At the end requests under way have `grace_s` seconds to be finished. Then `give_up` is awaited, which has those that
    are left answered with an error.
    """
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=connections_max,
            timeout_graceful_shutdown=ceil(grace_s) + SHUTDOWN_ANSWER_S,
        ),
        idle_s_max,
    )
    listener.listen(BACKLOG)
    try:
        async with asyncio.TaskGroup() as group:
            serve = group.create_task(server.serve(sockets=[listener]))
            try:
                yield
            finally:
                server.should_exit = True
            _, late = await asyncio.wait({serve}, timeout=grace_s)
            if late:
                await give_up()
    except ExceptionGroup as met:
        # What the caller raises is the caller's, whatever became of the server meanwhile.
        raise met.exceptions[-1] from None


class _Server(uvicorn.Server):
    """Leaves signals alone: the engine has to be shut down after it, in good order.

    Hangs up on clients that do not come to the end of a request's headers. Uvicorn itself does so only where it has
    answered something and not a byte has come since.
    """

    def __init__(self, config: uvicorn.Config, idle_s_max: float) -> None:
        super().__init__(config)
        self._idle_s_max = idle_s_max
        self._idle_since = dict[tuple[Any, Any], float]()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % 10 == 0:
            self._hang_up(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _hang_up(self, now_s: float) -> None:
        # Each request has a cycle of its own: who has had one since the last look was not idle all the time.
        latest = [(each, getattr(each, "cycle", None)) for each in self.server_state.connections]
        idle = [(each, cycle) for each, cycle in latest if cycle is None or cycle.response_complete]
        self._idle_since = {pair: self._idle_since.get(pair, now_s) for pair in idle}
        for (connection, _), since in self._idle_since.items():
            if now_s - since > self._idle_s_max:
                connection.transport.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch none."""
        yield
