"""The place in the file of what is refused: whoever refuses a setting knows its key, and the file knows the place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mac_runner.backends import Backend
from mac_runner.backends.passing import PassingBackend
from mac_runner.config import Loaded
from mac_runner.errors import ConfigError


@contextmanager
def located(loaded: Loaded) -> Iterator[None]:
    """Put the place in front of a ConfigError that is raised inside the block and has a key."""
    try:
        yield
    except ConfigError as error:
        if not error.key:
            raise
        raise ConfigError(f"{loaded.locate(error.key)}: {error}") from error


class LocatedBackend(PassingBackend):
    """Passes everything on to `backend`; what that refuses when it starts is told with its place in the file."""

    def __init__(self, backend: Backend, loaded: Loaded) -> None:
        super().__init__(backend)
        self._loaded = loaded

    async def start(self) -> None:
        """Start the engine. Raises ConfigError with the place of what is wrong."""
        with located(self._loaded):
            await super().start()
