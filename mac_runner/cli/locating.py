"""The place in the file of what is refused: whoever refuses a setting knows its key, and the file knows the place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mac_runner.backends import Backend
from mac_runner.backends.base import PassingBackend
from mac_runner.config import Loaded
from mac_runner.errors import ConfigError
from mac_runner.problems import config_error, dotted
from mac_runner.section import KeyPath


class PlacedError(ConfigError):
    """A ConfigError that says where in the file it is."""


@contextmanager
def located(loaded: Loaded, default: KeyPath = ()) -> Iterator[None]:
    """Put the place in front of a ConfigError that is raised inside the block: that of its key, or of `default`."""
    try:
        yield
    except PlacedError:
        raise
    except ConfigError as error:
        if error.key:
            raise PlacedError(f"{loaded.locate(error.key)}: {error}") from error
        if default:
            raise PlacedError(f"{loaded.locate(default)}: {dotted(default)}: {error}") from error
        raise


class Refusals:
    """What is wrong with the combinations of a grid: gathered over all of them, each line told once."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lines: dict[str, str] = {}

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """Note a ConfigError that is raised inside the block, for the combination of a number, from 1."""
        try:
            yield
        except ConfigError as error:
            for line in str(error).splitlines():
                self._lines.setdefault(line, f"{line} (combination {number} of {self._count})")

    def tell(self) -> None:
        """Raises ConfigError with all that was noted, if anything was."""
        if self._lines:
            raise config_error(self._lines.values())


class LocatedBackend(PassingBackend):
    """Passes everything on to `backend`; what that refuses when it starts is told with its place in the file."""

    def __init__(self, backend: Backend, loaded: Loaded, model: str) -> None:
        super().__init__(backend)
        self._loaded = loaded
        self._key: KeyPath = ("model_definitions", model)

    async def start(self) -> None:
        """Start the engine. Raises ConfigError with the place of what is wrong."""
        with located(self._loaded, self._key):
            await super().start()
