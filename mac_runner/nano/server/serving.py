"""An application on a socket: uvicorn, told when to stop by us and not by signals of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from math import ceil
from typing import Any

import uvicorn
from fastapi import FastAPI

from mac_runner.nano.server.descriptors import Listener
from mac_runner.nano.server.limits import BACKLOG, IDLE_S_MAX, SHUTDOWN_ANSWER_S, SHUTDOWN_GRACE_S


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, which nobody can connect to yet. Raises OSError."""
    # Without the protocol asyncio would not set TCP_NODELAY, and each answer on a kept connection would wait 40 ms.
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    except UnicodeError as error:
        listener.close()
        raise OSError(f"cannot listen at {host}:{port}: this is not the name of a host") from error
    return listener


def is_loopback(address: str) -> bool:
    """Whether an address of IPv4 or IPv6 is reached from this machine alone."""
    found = ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


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
    """Answer who connects. Hang up on a client that asks for nothing, or does not read its answer, for `idle_s_max`
    seconds.

    At the end requests under way have `grace_s` seconds to be finished. Then `give_up` is awaited, which has those that
    are left answered with an error.
    """
    server = _Server(
        uvicorn.Config(
            app,
            # The parser that bounds the headers, and reads one request of a connection at a time.
            http="h11",
            ws="none",
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

    Hangs up on clients that do not come to the end of a request's headers, or do not read their answers. Uvicorn itself
    does so only where it has answered something and not a byte has come since.
    """

    def __init__(self, config: uvicorn.Config, idle_s_max: float) -> None:
        super().__init__(config)
        self._idle_s_max = idle_s_max
        self._waiting_since = dict[tuple[Any, Any, int], float]()

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if counter % 10 == 0:
            self._hang_up(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _hang_up(self, now_s: float) -> None:
        # Each request has a cycle of its own: a connection with a new one was not idle all the time. The number of
        # unsent bytes stays the same while the client reads none of its answer.
        latest = [
            (each, getattr(each, "cycle", None), each.transport.get_write_buffer_size())
            for each in self.server_state.connections
        ]
        waiting = [mark for mark in latest if mark[2] or mark[1] is None or mark[1].response_complete]
        self._waiting_since = {mark: self._waiting_since.get(mark, now_s) for mark in waiting}
        for (connection, _, num_unsent), since in self._waiting_since.items():
            if now_s - since > self._idle_s_max:
                # `close` would wait until the client has read the rest.
                hang_up = connection.transport.abort if num_unsent else connection.transport.close
                hang_up()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch none."""
        yield
