"""An engine behind a socket for as long as the process runs: from the loading of the model to a signal."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass, field

import click

from mac_runner.nano.config import EngineConfig
from mac_runner.nano.errors import NanoError
from mac_runner.nano.server.app import build_app
from mac_runner.nano.server.descriptors import connections_within, descriptor_limit
from mac_runner.nano.server.limits import CONNECTIONS_SPARE
from mac_runner.nano.server.opening import open_service
from mac_runner.nano.server.service import Times
from mac_runner.nano.server.serving import bound, is_loopback, serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, under which name, and the keys that clients and the owner bring.

    With `is_open` anybody who can reach the address is served without a key.
    """

    host: str
    port: int
    name: str | None
    admin_key: str | None = field(repr=False)
    api_key: str | None = field(repr=False)
    is_open: bool


class UnguardedError(NanoError):
    """Others than this machine could reach the server, and it asks for no key."""


async def serve(config: EngineConfig, address: Address) -> None:
    """Load the model, then listen, until SIGINT or SIGTERM comes: nobody is let in before there is an answer to be had.

    Raises NanoError when the model cannot be loaded, OSError when the address cannot be had, and UnguardedError.
    """
    times = Times(unix_s=time.time, monotonic_s=time.monotonic, sleep=asyncio.sleep)
    with bound(address.host, address.port) as listener:
        _require_key(address, listener.getsockname()[0])
        async with open_service(config, times=times, name=address.name) as service:
            app = build_app(service, admin_key=address.admin_key, api_key=address.api_key)
            give_up = service.engine.shutdown
            async with serving(app, listener, connections_max=_connections_max(config), give_up=give_up):
                click.echo(f"serving {service.card.name} at {_url(*listener.getsockname()[:2])}", err=True)
                await _told_to_stop()


def _require_key(address: Address, bound_to: str) -> None:
    """Raises UnguardedError by the address that the name of the host has led to."""
    if address.api_key is None and not address.is_open and not is_loopback(bound_to):
        raise UnguardedError(
            f"--host {address.host} lets in more than this machine. Set --api-key-env VARIABLE, the environment "
            "variable with a key that clients must bring, or --open to serve everybody who can reach it"
        )


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _connections_max(config: EngineConfig) -> int:
    """As many as the queue makes sense of, or as this process may hold."""
    wanted, limit = config.max_batch_size + config.max_waiting + CONNECTIONS_SPARE, descriptor_limit()
    allowed = connections_within(wanted, limit)
    if allowed < wanted:
        click.echo(
            f"{allowed} connections at most: {limit} file descriptors allow no {wanted} (`ulimit -Hn`)", err=True
        )
    return allowed


async def _told_to_stop() -> None:
    """Wait for SIGINT or SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    for each in signals:
        loop.add_signal_handler(each, stop.set)
    try:
        await stop.wait()
    finally:
        for each in signals:
            loop.remove_signal_handler(each)
