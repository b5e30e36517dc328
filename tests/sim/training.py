"""A trainer that can be killed: it plays echoes on an engine of its own, and learns nothing from them.

It makes a version of every two conversations. What it used is on its disk before the run gets the new weights, so a
trainer that starts again knows where it was.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
from pathlib import Path
from typing import Final

from mac_runner import Policy, RecordedConversation, Stream, stream
from mac_runner.store.testing import objects, recorded_from_json
from mac_runner.types import JsonObject, JsonValue

BATCH: Final = 2
MAX_LAG: Final = 1
ENGINE: Final = '''
import asyncio
from mac_runner import PolicySpan, Reply, WeightMismatchError


class Learner:
    """An engine whose weights are a version; a reply takes a few passes of the loop."""

    capacity = 4

    def __init__(self):
        self.version = 0
        self.asked = 0

    async def generate(self, request):
        start, self.asked = self.version, self.asked + 1
        for _ in range(self.asked % 5):
            await asyncio.sleep(0.001)
        return Reply(text="7", policy=PolicySpan(start, self.version))

    async def update_weights(self, update):
        await asyncio.sleep(0.001)
        if "wrong" in str(update.weights):
            raise WeightMismatchError("wrong names")
        if "broken" in str(update.weights):
            raise ValueError("a bug")
        self.version = update.version
        await asyncio.sleep(0.003)  # Replies of this version come before the end of the update.
'''


def experiment(conversations: int = 12, **more: JsonValue) -> JsonObject:
    """One agent sends numbers back, three in each conversation; the engine is in `learner.py`."""
    return {
        "experiment_metadata": {"experiment_name": "echoes"},
        "conversation_config": {"environment": "echo", "conversations": conversations},
        "echo": {"rounds": 3},
        "model_definitions": {"learner": {"backend": "./learner.py:Learner"}},
        "agent_definitions": [{"agent_id": "a", "role": "participant", "model": "learner"}],
        **more,
    }


def checkpoint(path: Path, content: str) -> Path:
    """Write a safetensors file with one tensor, as a whole."""
    data = content.encode()
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    unfinished = path.with_suffix(".new")
    unfinished.write_bytes(struct.pack("<Q", len(header)) + header + data)
    os.replace(unfinished, path)
    return path


def spans(conversation: RecordedConversation) -> list[tuple[int, int]]:
    """The versions of each reply."""
    found = [recorded_from_json(turn).reply.policy for turn in objects(conversation.transcript, "turns")]
    return [(span.start, span.end) for span in found if span is not None]


class Trainer:
    """Makes a version of every `BATCH` conversations that it has not used, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "used.jsonl"
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        self._done: list[JsonObject] = [json.loads(line) for line in lines]
        self._batch: dict[str, int] = {}

    @property
    def version(self) -> int:
        """The version that it made last."""
        return len(self._done)

    @property
    def used(self) -> dict[str, int]:
        """The lag of each conversation that it used."""
        return {str(task): int(str(lag)) for batch in self._done for task, lag in batch.items()} | self._batch

    def file(self, version: int) -> Path:
        """Where the weights of a version are."""
        return self._folder / f"{version}.safetensors"

    @property
    def policy(self) -> Policy:
        """What it goes on with."""
        weights = self.file(self.version) if self.version else None
        return Policy("learner", max_lag=MAX_LAG, batch=BATCH, version=self.version, weights=weights)

    async def take(self, running: Stream, conversation: RecordedConversation) -> None:
        """Train on a conversation, unless it did."""
        if conversation.task_id in self.used:
            return
        self._batch[conversation.task_id] = self.version - min(start for start, _ in spans(conversation))
        if len(self._batch) == BATCH:
            weights = checkpoint(self.file(self.version + 1), f"v{self.version + 1}")
            with self._log.open("a") as log:
                log.write(json.dumps(self._batch) + "\n")
            self._done.append({**self._batch})
            self._batch.clear()
            await running.update_weights(weights, self.version, blocking=False)


async def train(content: JsonObject, folder: Path) -> Trainer:
    """Play and train to the end."""
    trainer = Trainer(folder)
    async with stream(content, policy=trainer.policy, progress=False) as running:
        async for conversation in running:
            await trainer.take(running, conversation)
    return trainer


def main(conversations: str) -> None:
    """In the working directory, as a program."""
    asyncio.run(train(experiment(int(conversations)), Path()))
