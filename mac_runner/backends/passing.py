"""A backend around another one: the base of those that add one thing to any engine and leave the rest as it is."""

from __future__ import annotations

from mac_runner.backends.base import Backend
from mac_runner.types import Reply, Request


class PassingBackend:
    """Passes everything on to `backend`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def capacity(self) -> int:
        """That of the engine."""
        return self._backend.capacity

    @property
    def token_budget(self) -> int | None:
        """That of the engine."""
        return self._backend.token_budget

    @property
    def lookahead(self) -> int:
        """That of the engine."""
        return self._backend.lookahead

    async def start(self) -> None:
        """Start the engine."""
        await self._backend.start()

    async def generate(self, request: Request) -> Reply:
        """The engine's reply."""
        return await self._backend.generate(request)

    async def close(self) -> None:
        """Close the engine."""
        await self._backend.close()
