"""The transcript of an ended conversation, made again from its recorded replies without any engine.

It takes the path of a resume, so it has the same bytes as the published one if all its replies are there. This module
does not check that: the caller compares the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mac_runner.config import RetryConfig
from mac_runner.environments.base import Environment
from mac_runner.errors import ConfigError, ConversationError, RunDirectoryError, StoreError
from mac_runner.scheduler.conversation import LiveConversation
from mac_runner.scheduler.interfaces import Source
from mac_runner.store import build_transcript
from mac_runner.store.records import entry
from mac_runner.store.transcripts import as_measured
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply, Task


class Unrecorded:
    """A recorder that keeps nothing: for what was recorded before, and for measurements without a store."""

    failure: StoreError | None = None
    written = 0

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Keep nothing."""

    def event(self, name: str, fields: JsonObject) -> None:
        """Keep nothing."""

    def checkpoint(self, accounting: JsonObject) -> None:
        """Keep nothing."""

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """Keep nothing."""

    def policy(self, model: str, policy: PolicyVersion) -> None:
        """Keep nothing."""

    def death(self, task: Task, turn_key: str) -> None:
        """Keep nothing."""

    def deaths(self, task: Task) -> Mapping[str, int]:
        """None is known."""
        return {}

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """Keep nothing."""

    async def flow(self) -> None:
        """Keep nothing."""


class Restoration:
    """Makes transcripts of one experiment again; `models` names its models."""

    def __init__(
        self, environment: Environment, *, environment_name: str, experiment_name: str, models: Sequence[str]
    ) -> None:
        self._source = Source(
            environment=environment,
            environment_name=environment_name,
            experiment_name=experiment_name,
            engines={name: name for name in models},
            recorder=Unrecorded(),
            retry=RetryConfig(),
        )

    def __call__(self, task: Task, replies: Sequence[RecordedReply], row: JsonObject) -> JsonObject | None:
        """The transcript of an ended conversation, from its replies and its index row; None if they do not make one."""
        try:
            live = self.opened(task, replies)
            _end(live, row)
            ending = live.settle()
            return build_transcript(
                experiment_name=self._source.experiment_name,
                environment=self._source.environment_name,
                task=task,
                outcome=ending.outcome,
                record=ending.record,
                fingerprint=ending.fingerprint,
                turns=live.records,
                failure=live.failure,
                timing=entry(row, "timing", dict),
                measure=as_measured(row),
            )
        except (ConfigError, ConversationError, RunDirectoryError, ValueError):
            return None

    def opened(self, task: Task, replies: Sequence[RecordedReply]) -> LiveConversation:
        """A conversation as a resume finds it. Raises RunDirectoryError where this version renders other prompts."""
        live = LiveConversation(0, self._source, task, 0.0)
        live.open(replies)
        return live


def _end(live: LiveConversation, row: JsonObject) -> None:
    """Apply a failure without an answer, which only the index row records."""
    failure = row.get("failure")
    if failure is None or live.failure is not None:
        return
    live.failure = str(failure)
    # Its transcript has the turns before the one that it failed on, which are the first ones in canonical order.
    ordered = sorted(record.turn.canonical for record in live.records)
    turns = entry(entry(row, "counts", dict), "turns", int)
    if turns < len(ordered):
        live.failed_at = ordered[turns]
