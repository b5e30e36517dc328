"""The commands of other threads to the thread that takes an engine's steps."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue


class Mailbox:
    """Commands in the order in which they came. Any thread adds them; the engine's thread runs them between steps."""

    def __init__(self) -> None:
        self._commands = SimpleQueue[Callable[[], object]]()

    def put(self, command: Callable[[], object]) -> None:
        """Add a command."""
        self._commands.put(command)

    def perform(self, *, timeout_s: float | None, is_closing: Callable[[], bool]) -> None:
        """Run all commands until one closes the engine; wait so long for the first, and with None without end."""
        while True:
            try:
                command = self._commands.get(timeout=timeout_s)
            except Empty:
                return
            command()
            if is_closing():
                return
            timeout_s = 0.0
