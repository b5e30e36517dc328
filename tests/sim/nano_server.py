"""A server of nano on a real socket, in the loop of the test: the very application that `mac-serve` runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from mac_runner.nano import EngineConfig, EngineStats
from mac_runner.nano.server import BodyBudget, Service, bound, build_app, open_service, serving

MODEL = "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A server, and the service behind it to look at."""

    url: str
    port: int
    service: Service

    async def stats(self) -> EngineStats:
        """How busy the engine is, between two of its steps."""
        return await self.service.engine.stats()

    async def until_running(self, number: int) -> None:
        """Wait until so many completions are computed."""
        while (await self.stats()).num_running != number:
            pass

    async def until_waiting(self, number: int) -> None:
        """Wait until so many completions wait."""
        while (await self.stats()).num_waiting != number:
            pass


@asynccontextmanager
async def served(
    model: Path,
    *,
    admin_key: str | None = None,
    api_key: str | None = None,
    budget: BodyBudget | None = None,
    max_batch_size: int = 16,
    max_waiting: int = 64,
    max_model_len: int = 8192,
    grace_s: float = 10.0,
    port: int = 0,
) -> AsyncIterator[Served]:
    """Serve a model for the time of the block."""
    config = EngineConfig(
        model_path=str(model),
        num_threads=1,
        num_blocks=1024,
        max_batch_size=max_batch_size,
        max_waiting=max_waiting,
        max_model_len=max_model_len,
        admission="preempt",
    )
    with bound("127.0.0.1", port) as listener:
        port = listener.getsockname()[1]
        async with open_service(config, name=MODEL) as service:
            app = build_app(service, admin_key=admin_key, api_key=api_key, budget=budget)
            give_up = service.engine.shutdown
            async with serving(app, listener, connections_max=1000, give_up=give_up, grace_s=grace_s):
                yield Served(url=f"http://127.0.0.1:{port}", port=port, service=service)
