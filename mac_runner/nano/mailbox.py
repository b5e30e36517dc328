"""The commands of other threads to the thread that takes an engine's steps."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue


class Mailbox:
    """Commands in the order in which they came. Any thread adds them; the engine's thread runs them between steps."""

    def __init__(self) -> None:
        self._commands = SimpleQueue[Callable[[], None]]()

    def put(self, command: Callable[[], None]) -> None:
        """Add a command."""
        self._commands.put(command)

    def perform(self, *, waits: bool, is_closing: Callable[[], bool]) -> None:
        """Run all commands until one closes the engine; with `waits`, wait for the first."""
        if waits:
            self._commands.get()()
        while not is_closing():
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            command()
