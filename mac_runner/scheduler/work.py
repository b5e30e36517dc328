"""What there is to play: conversations, each with the experiment it belongs to.

A run may pool several experiments over the same engines. What differs between them (environment, names, retry policy,
where results go) is a Source; what they share is the run's. Conversations of all sources are numbered in the order in
which they are taken, and nothing but that order tells them apart to the scheduler: at the seam between two experiments
the slots stay full as they do inside one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mac_runner.environments.base import Environment
from mac_runner.scheduler.recorder import Recorder
from mac_runner.scheduler.retry import RetryPolicy
from mac_runner.types import RecordedReply, Task


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Source:
    """One experiment of a run. `engines` names for each of its models the engine of the run that serves it."""

    environment: Environment
    environment_name: str
    experiment_name: str
    engines: Mapping[str, str]
    recorder: Recorder
    retry: RetryPolicy


class Job(NamedTuple):
    """One conversation to play, with the replies recorded for it so far."""

    source: Source
    task: Task
    replies: tuple[RecordedReply, ...]


class Work(Protocol):
    """The conversations of a run, in the order in which they are to be begun."""

    async def take(self) -> Job | None:
        """The next one, None when there is none left. Called again only when the last call has returned."""
        ...

    def settled(self, source: Source) -> None:
        """A conversation of `source` is over: published, and told in its event log."""
        ...


class SoleWork:
    """The conversations of one experiment, played by itself."""

    def __init__(self, source: Source, tasks: Iterator[tuple[Task, tuple[RecordedReply, ...]]]) -> None:
        self._source = source
        self._tasks = tasks

    async def take(self) -> Job | None:
        """The next in order of the plan."""
        item = next(self._tasks, None)
        return None if item is None else Job(self._source, *item)

    def settled(self, source: Source) -> None:
        """Nothing follows from it: whoever opened the recorder closes it."""
