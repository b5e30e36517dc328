"""What the scheduler needs of a run directory. The store's Run is one; a test's list of calls is another.

A RunLog takes what concerns the run as a whole, a Recorder what concerns the conversations of one experiment too. In a
run of one experiment the two are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from mac_runner.errors import StoreError
from mac_runner.types import JsonObject, RecordedReply, Task


class RunLog(Protocol):
    """Takes what happened, at once and in order; writing is its own business. Any call may raise StoreError."""

    @property
    def failure(self) -> StoreError | None:
        """The write that failed, if one did; nothing after it is acknowledged."""
        ...

    @property
    def written(self) -> int:
        """Conversations published and safe on disk, of all sessions."""
        ...

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` when a write fails; it may come from another thread."""
        ...

    def event(self, name: str, fields: JsonObject) -> None:
        """A line of the event log."""
        ...

    def checkpoint(self, accounting: JsonObject) -> None:
        """The accounts of this session so far."""
        ...


class Recorder(RunLog, Protocol):
    """Takes the conversations of one experiment as well."""

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """A reply that was paid for."""
        ...

    def death(self, task: Task, turn_key: str) -> None:
        """An engine died while it worked on this turn."""
        ...

    def deaths(self, task: Task) -> Mapping[str, int]:
        """How often an engine died on each turn of a conversation that is not over, in all sessions."""
        ...

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """The transcript of a conversation that is over."""
        ...

    async def flow(self) -> None:
        """Wait while too much waits for the disk."""
        ...
