"""The place in the file of what is refused: whoever refuses a setting knows its key, and the file knows the place."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from contextlib import contextmanager

from mac_runner.backends import Backend
from mac_runner.config import Loaded
from mac_runner.errors import ConfigError
from mac_runner.types import Reply, Request


@contextmanager
def located(loaded: Loaded) -> Iterator[None]:
    """Put the place in front of a ConfigError that is raised inside the block and has a key."""
    try:
        yield
    except ConfigError as error:
        if not error.key:
            raise
        raise ConfigError(f"{loaded.locate(error.key)}: {error}") from error


class LocatedBackend:
    """Passes everything on to `backend`; what that refuses when it starts is told with its place in the file."""

    def __init__(self, backend: Backend, loaded: Loaded) -> None:
        self._backend = backend
        self._loaded = loaded

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
        """Start the engine. Raises ConfigError with the place of what is wrong."""
        with located(self._loaded):
            await self._backend.start()

    def generate(self, request: Request) -> Coroutine[object, object, Reply]:
        """The engine's reply."""
        return self._backend.generate(request)

    async def close(self) -> None:
        """Close the engine."""
        await self._backend.close()
