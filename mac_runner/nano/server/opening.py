"""From an engine's configuration to a service that is ready to answer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from mac_runner.nano.async_engine import AsyncEngine
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.recommended import recommended_sampling
from mac_runner.nano.server.card import card_of
from mac_runner.nano.server.service import Service, Times


@asynccontextmanager
async def open_service(config: EngineConfig, *, times: Times, name: str | None = None) -> AsyncIterator[Service]:
    """An engine that runs, and what its server knows of the model; shut down at the end. Raises NanoError."""
    engine = AsyncEngine(config)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nano-tokens")
    try:
        await engine.start()
        stats = await engine.stats()
        yield Service(
            engine,
            card_of(engine.engine, name),
            recommended_sampling(engine.engine.directory),
            cache_tokens=stats.num_blocks * config.block_size,
            times=times,
            thread=thread,
        )
    finally:
        await engine.shutdown()
        thread.shutdown()
