"""An engine behind a socket for as long as the process runs: from the loading of the model to a signal."""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import dataclass

import click

from mac_runner.nano.config import EngineConfig
from mac_runner.nano.server.app import build_app
from mac_runner.nano.server.descriptors import connections_within, raise_limit
from mac_runner.nano.server.limits import CONNECTIONS_SPARE
from mac_runner.nano.server.opening import open_service
from mac_runner.nano.server.service import Times
from mac_runner.nano.server.serving import bound, serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen, under which name, and who may administrate."""

    host: str
    port: int
    name: str | None
    admin_key: str | None


async def serve(config: EngineConfig, address: Address) -> None:
    """Load the model, then listen, until SIGINT or SIGTERM comes: nobody is let in before there is an answer to be had.

    Raises NanoError when the model cannot be loaded, OSError when the address cannot be had.
    """
    times = Times(unix_s=time.time, monotonic_s=time.monotonic, sleep=asyncio.sleep)
    with bound(address.host, address.port) as listener:
        async with open_service(config, times=times, name=address.name) as service:
            app = build_app(service, admin_key=address.admin_key)
            give_up = service.engine.shutdown
            async with serving(app, listener, connections_max=_connections_max(config), give_up=give_up):
                click.echo(f"serving {service.card.name} at {_url(*listener.getsockname()[:2])}", err=True)
                await _told_to_stop()


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _connections_max(config: EngineConfig) -> int:
    """As many as the queue makes sense of, or as this process may hold."""
    wanted, limit = config.max_batch_size + config.max_waiting + CONNECTIONS_SPARE, raise_limit()
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
