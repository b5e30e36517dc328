"""The life of a server: from loading the model to a signal that ends it (`serve`).

Uvicorn serves; this module decides when it stops, because the engine must be shut down after it. Each connection is a
file descriptor, and a process has a limited number of them, so connections are limited, too.
"""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from math import ceil
from typing import Any

import click
import uvicorn
from fastapi import FastAPI

from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import NanoError
from mac_runner.nano.parallel.world import ALONE, World
from mac_runner.nano.server.app import build_app
from mac_runner.nano.server.service import open_service

SHUTDOWN_GRACE_S = 10
SHUTDOWN_ANSWER_S = 5
"""Time to send 503 to requests that still run after the grace period; then every client is hung up on."""
SHUTDOWN_SPARE_S = 5
"""Time to end the requests of clients that were hung up on, before they are cancelled."""
CONNECTIONS_SPARE = 1_000
"""Connections beyond those of running and waiting requests."""
DESCRIPTORS_KEPT = 128
"""File descriptors that connections leave to the model's files, pipes and libraries."""
DESCRIPTORS_LAST = 32
"""The last of these; a connection that takes one is closed without an answer."""
IDLE_S_MAX = 30.0
"""How long a connection may be without a request; a request begins when all its headers are there."""
CROWD_SHARE = 0.75
"""Of all connections that there may be. Beyond it those without a whole request are closed, the longest idle first."""
BACKLOG = 2048
"""Connections that wait to be accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, the model's name, and the keys that clients and the owner bring.

    With `is_open` every client that can reach the address is served without a key.
    """

    host: str
    port: int
    name: str | None
    admin_key: str | None = field(repr=False)
    api_key: str | None = field(repr=False)
    is_open: bool


class UnguardedError(NanoError):
    """Other machines could reach the server, and it has no key."""


async def serve(config: EngineConfig, address: Address, world: World = ALONE) -> None:
    """Load the model, then listen until SIGINT or SIGTERM comes. No client can connect before the model is loaded.

    Raises NanoError when the model cannot be loaded, OSError when the address is not available, and UnguardedError.
    """
    with bound(address.host, address.port) as listener:
        _require_key(address, listener.getsockname()[0])
        if (limit := descriptor_limit()) is not None and limit <= DESCRIPTORS_KEPT:
            raise OSError(f"{limit} file descriptors leave none for connections: raise their limit (`ulimit -Hn`)")
        async with open_service(config, name=address.name, world=world) as service:
            app = build_app(service, admin_key=address.admin_key, api_key=address.api_key)
            give_up = service.engine.shutdown
            async with serving(app, listener, connections_max=_connections_max(config), give_up=give_up):
                with _stop_signal() as stop:
                    host, port = listener.getsockname()[:2]
                    shown = f"[{host}]" if ":" in host else host
                    click.echo(f"serving {service.card.name} at http://{shown}:{port}", err=True)
                    await stop.wait()


def _require_key(address: Address, bound_to: str) -> None:
    """Raise UnguardedError, judged by the address that the host's name leads to."""
    if address.api_key is None and not address.is_open and not is_loopback(bound_to):
        raise UnguardedError(
            f"--host {address.host} lets in more than this machine. Set --api-key-env VARIABLE, the environment "
            "variable with a key that clients must bring, or --open to serve everybody who can reach it"
        )


def _connections_max(config: EngineConfig) -> int:
    """The connections that the queue can use, or that this process may hold."""
    running = config.max_batch_size * config.data_parallel_size
    wanted, limit = running + config.max_waiting + CONNECTIONS_SPARE, descriptor_limit()
    allowed = connections_within(wanted, limit)
    if allowed < wanted:
        click.echo(
            f"{allowed} connections at most: {limit} file descriptors allow no {wanted} (`ulimit -Hn`)", err=True
        )
    return allowed


@contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set, from before anybody is told that the server serves."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, stop.set)
    try:
        yield stop
    finally:
        for each in signals:
            loop.remove_signal_handler(each)


def bound(host: str, port: int) -> socket.socket:
    """A socket at an address; clients can connect once it listens. Raises OSError."""
    # Without the protocol asyncio would not set TCP_NODELAY, and each answer on a kept connection would wait 40 ms.
    listener = Listener(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise _unavailable(host, port, error) from error
    except UnicodeError as error:
        listener.close()
        raise OSError(f"cannot listen at {host}:{port}: this is not the name of a host") from error
    return listener


def _unavailable(host: str, port: int, error: OSError) -> OSError:
    return OSError(f"cannot listen at {host}:{port}: {error.strerror}")


def is_loopback(address: str) -> bool:
    """Whether an address of IPv4 or IPv6 is reached from this machine alone."""
    found = ip_address(address)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def descriptor_limit() -> int | None:
    """The file descriptors that this process may have; None for no limit. The caller may raise it before."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def connections_within(wanted: int, limit: int | None) -> int:
    """`wanted` connections, or as many as `limit` descriptors leave beside DESCRIPTORS_KEPT; at least one."""
    return wanted if limit is None else max(min(wanted, limit - DESCRIPTORS_KEPT), 1)


class Listener(socket.socket):
    """A socket that closes a connection which would take one of the last descriptors.

    Without any left, this process could open nothing, and asyncio would log thousands of lines a second.
    """

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises ConnectionAbortedError when there is no room."""
        connection, address = super().accept()
        limit = descriptor_limit()
        # The number of a descriptor is the lowest that is free.
        if limit is not None and connection.fileno() >= limit - DESCRIPTORS_LAST:
            connection.close()
            raise ConnectionAbortedError(f"{limit} file descriptors leave no room for more connections")
        return connection, address


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
    """Serve an application. Close connections that send no request, or do not read an answer, for `idle_s_max` s.

    At the end requests under way have `grace_s` seconds to finish. Then `give_up` is awaited, which makes the others
    end with an error.
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
            # Otherwise read from the environment: WEB_CONCURRENCY and FORWARDED_ALLOW_IPS.
            workers=1,
            proxy_headers=False,
            # Uvicorn counts the connection that asks, too, and refuses from this number on.
            limit_concurrency=connections_max + 1,
            # Later than the clients that are hung up on: it would log a traceback for each.
            timeout_graceful_shutdown=ceil(grace_s) + SHUTDOWN_ANSWER_S + SHUTDOWN_SPARE_S,
        ),
        connections_max,
        idle_s_max,
    )
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        # Another process was bound to the same address, and listened first.
        host, port = listener.getsockname()[:2]
        raise _unavailable(host, port, error) from error
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
                _, late = await asyncio.wait({serve}, timeout=SHUTDOWN_ANSWER_S)
            if late:
                server.hang_up()
    except ExceptionGroup as met:
        # The caller's own error, whatever became of the server meanwhile.
        raise met.exceptions[-1] from None


class _Server(uvicorn.Server):
    """Leaves signals alone, and closes idle connections.

    These are connections whose client does not finish a request's headers, or does not read its answer; in a crowd also
    those whose body is not there yet, which has a limit of its own. Uvicorn itself closes only those where it has
    answered something and not a byte has come since.
    """

    def __init__(self, config: uvicorn.Config, connections_max: int, idle_s_max: float) -> None:
        super().__init__(config)
        self._idle_s_max = idle_s_max
        self._crowd = ceil(connections_max * CROWD_SHARE)
        self._waiting_since = dict[tuple[Any, Any, int, bool], float]()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0 or len(self.server_state.connections) > self._crowd:
            self._close_idle(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def _close_idle(self, now_s: float) -> None:
        # Each request has a cycle of its own, so a connection with a new one was not idle all the time. The number of
        # unsent bytes stays the same while the client reads none of its answer.
        latest = [
            (each, cycle, each.transport.get_write_buffer_size(), cycle is not None and cycle.more_body)
            for each in self.server_state.connections
            for cycle in (getattr(each, "cycle", None),)
        ]
        idle = {mark for mark in latest if mark[2] or mark[1] is None or mark[1].response_complete}
        waiting = [mark for mark in latest if mark in idle or mark[3]]
        self._waiting_since = {mark: self._waiting_since.get(mark, now_s) for mark in waiting}
        num_surplus = len(self.server_state.connections) - self._crowd
        oldest = sorted(self._waiting_since.items(), key=lambda each: each[1])
        for rank, (mark, since) in enumerate(oldest):
            if rank < num_surplus or (mark in idle and now_s - since > self._idle_s_max):
                transport, num_unsent = mark[0].transport, mark[2]
                # `close` would wait until the client has read the rest.
                hang_up = transport.abort if num_unsent else transport.close
                hang_up()

    def hang_up(self) -> None:
        """Close every connection, whatever was not read or sent on it."""
        for each in list(self.server_state.connections):
            each.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
