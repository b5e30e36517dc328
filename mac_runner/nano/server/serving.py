"""An application on a socket: uvicorn, told when to stop by us and not by signals of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import ceil

import uvicorn
from fastapi import FastAPI

from mac_runner.nano.server.limits import BACKLOG, SHUTDOWN_ANSWER_S, SHUTDOWN_GRACE_S


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address, which nobody can connect to yet. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
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
) -> AsyncIterator[None]:
    """Answer who connects. At the end requests under way have `grace_s` seconds to be finished.

    Then `give_up` is awaited, which has those that are left answered with an error.
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
        )
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
    """Leaves signals alone: the engine has to be shut down after it, in good order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Catch none."""
        yield
