"""A run directory in memory, with a disk that can be made to fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from mac_runner.errors import StoreError
from mac_runner.store import without_timing
from mac_runner.types import JsonObject, JsonValue, PolicyVersion, RecordedReply, Task
from tests.sim.toy import Work


class MemoryRecorder:
    """Keeps what it is given. `fails_after` replies the disk is full."""

    def __init__(self, *, fails_after: int | None = None) -> None:
        self.replies: dict[str, list[RecordedReply]] = {}
        self.policies: list[tuple[str, PolicyVersion]] = []
        self.dead: dict[str, Counter[str]] = {}
        self.transcripts: dict[str, JsonObject] = {}
        self.events: list[tuple[str, JsonObject]] = []
        self.checkpoints: list[JsonObject] = []
        self.callbacks: list[Callable[[StoreError], None]] = []
        self.failure: StoreError | None = None
        self._left = fails_after

    @property
    def written(self) -> int:
        return len(self.transcripts)

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        self.callbacks.append(callback)

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self.failure = StoreError("no space left on device")
                raise self.failure
        self.replies.setdefault(task.task_id, []).append(recorded)

    def policy(self, model: str, policy: PolicyVersion) -> None:
        self.policies.append((model, policy))

    def death(self, task: Task, turn_key: str) -> None:
        self.dead.setdefault(task.task_id, Counter())[turn_key] += 1

    def deaths(self, task: Task) -> Mapping[str, int]:
        return self.dead.get(task.task_id, {})

    def publish(self, task: Task, transcript: JsonObject) -> None:
        assert task.task_id not in self.transcripts, f"{task.task_id} was published twice"
        self.transcripts[task.task_id] = transcript

    def event(self, name: str, fields: JsonObject) -> None:
        if self.failure is not None:
            raise self.failure
        self.events.append((name, fields))

    def checkpoint(self, accounting: JsonObject) -> None:
        self.checkpoints.append(accounting)

    def fail(self) -> None:
        """What the writer's thread does when a write fails."""
        self.failure = StoreError("no space left on device")
        for callback in self.callbacks:
            callback(self.failure)

    async def flow(self) -> None:
        if self.failure is not None:
            raise self.failure

    def named(self, name: str) -> list[JsonObject]:
        """The events of one name."""
        return [fields for event, fields in self.events if event == name]

    def results(self) -> dict[str, JsonValue]:
        """All transcripts, less what depends on time."""
        return {task_id: without_timing(self.transcripts[task_id]) for task_id in sorted(self.transcripts)}

    def unfinished(self, work: Work) -> Work:
        """What a next session has to do, with the replies recorded so far."""
        return [
            (task, tuple(self.replies.get(task.task_id, ())))
            for task, _ in work
            if task.task_id not in self.transcripts
        ]
