"""What a run is given: the conversations to play, and where results go.

A run may pool several experiments over the same engines. What differs between them is a `Source`; conversations of all
sources are numbered in the order in which they are taken. The store's RunRecorder is a `Recorder`; a test's list of
calls is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mac_runner.config import RetryConfig
from mac_runner.environments.base import Environment
from mac_runner.errors import StoreError
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply, Task


class RunLog(Protocol):
    """Takes what concerns the run as a whole, in order, without waiting. Any call may raise StoreError."""

    @property
    def failure(self) -> StoreError | None:
        """The write that failed, if one did; nothing after it is acknowledged."""
        ...

    @property
    def written(self) -> int:
        """Conversations published and safe on disk, of all sessions."""
        ...

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` when a write fails; the call may come from another thread."""
        ...

    def event(self, name: str, fields: JsonObject) -> None:
        """Append a line to the event log."""
        ...

    def checkpoint(self, accounting: JsonObject) -> None:
        """Keep the accounts of this session so far."""
        ...


class Recorder(RunLog, Protocol):
    """Takes the conversations of one experiment as well; with one experiment it is also the run's log."""

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """Append a reply to the journal."""
        ...

    def policy(self, model: str, policy: PolicyVersion) -> None:
        """Record the weights that a model has from now on, before the replies that follow."""
        ...

    def death(self, task: Task, turn_key: str) -> None:
        """Record that an engine died while it worked on this turn."""
        ...

    def deaths(self, task: Task) -> Mapping[str, int]:
        """Deaths of engines by turn, of a conversation that is not over, in all sessions."""
        ...

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """Publish the transcript of a conversation that is over."""
        ...

    async def flow(self) -> None:
        """Wait while the backlog for the disk is too long."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Source:
    """One experiment of a run."""

    environment: Environment
    environment_name: str
    experiment_name: str
    engines: Mapping[str, str]
    """For each model of the experiment, the engine of the run that serves it."""
    recorder: Recorder
    retry: RetryConfig
    measure: Callable[[JsonObject], JsonObject] | None = None
    """What its metrics make of a transcript, if it has any."""


class Job(NamedTuple):
    """One conversation to play."""

    source: Source
    task: Task
    replies: tuple[RecordedReply, ...]
    """What is recorded of it so far."""


class Work(Protocol):
    """The conversations of a run, in the order in which they begin."""

    async def take(self) -> Job | None:
        """The next one, or None when none is left. Calls do not overlap."""
        ...

    def settled(self, source: Source) -> None:
        """A conversation of `source` is published and its ending is in the event log."""
        ...
