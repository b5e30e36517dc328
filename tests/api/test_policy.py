"""A trainer's loop without a real engine: versions, lag, updates that fail, resumes, and kills."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mac_runner import (
    ConfigError,
    Policy,
    RecordedConversation,
    RunDirectoryError,
    StaleVersionError,
    Stream,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
    run,
    stream,
)
from mac_runner.store.disk import Disk
from mac_runner.store.journal import marks
from mac_runner.store.layout import Layout
from mac_runner.store.records import objects, recorded_from_json
from mac_runner.types import JsonObject, JsonValue
from tests.cli.lab import Lab

LEARNER = '''
import asyncio
from mac_runner import PolicySpan, Reply, WeightMismatchError


class Learner:
    """An engine whose weights are a number of versions; a reply takes a few passes of the loop."""

    capacity = 4

    def __init__(self):
        self.version = 0
        self.updating = asyncio.Event()

    async def generate(self, request):
        start = self.version
        for _ in range(hash(request.request_id) % 5):
            await asyncio.sleep(0.001)
        return Reply(text="7", policy=PolicySpan(start, self.version))

    async def update_weights(self, update):
        await asyncio.sleep(0.002)
        if "wrong" in str(update.weights):
            raise WeightMismatchError("wrong names")
        if "broken" in str(update.weights):
            raise ValueError("a bug")
        self.version = update.version
'''


def experiment(conversations: int = 12, name: str = "echoes", **more: JsonValue) -> JsonObject:
    """One agent sends numbers back."""
    return {
        "experiment_metadata": {"experiment_name": name},
        "conversation_config": {"environment": "echo", "conversations": conversations},
        "echo": {"rounds": 3},
        "model_definitions": {"learner": {"backend": "./learner.py:Learner"}},
        "agent_definitions": [{"agent_id": "a", "role": "participant", "model": "learner"}],
        **more,
    }


@pytest.fixture
def school(lab: Lab) -> Lab:
    """A working directory with an engine that learns."""
    (lab.path / "learner.py").write_text(LEARNER)
    return lab


def checkpoint(path: Path, content: str) -> Path:
    """A safetensors file with one tensor."""
    data = content.encode()
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def spans(conversation: RecordedConversation) -> list[tuple[int, int]]:
    """The versions of each reply."""
    found = [recorded_from_json(turn).reply.policy for turn in objects(conversation.transcript, "turns")]
    return [(span.start, span.end) for span in found if span is not None]


class Trainer:
    """Makes a version of every `batch` conversations that it gets, in a file of its own."""

    def __init__(self, folder: Path, *, batch: int = 2, version: int = 0) -> None:
        self.version = version
        self.lags: list[int] = []
        self.seen: list[int] = []
        self._folder = folder
        self._batch = batch
        self._got = 0

    def file(self, version: int) -> Path:
        return self._folder / f"{version}.safetensors"

    async def take(self, running: Stream, conversation: RecordedConversation) -> None:
        """Train on one conversation."""
        self.seen.append(conversation.ended.index)
        self.lags.append(self.version - min(start for start, _ in spans(conversation)))
        self._got += 1
        if self._got == self._batch:
            self._got, self.version = 0, self.version + 1
            await running.update_weights(checkpoint(self.file(self.version), f"v{self.version}"))


def frames(directory: Path, name: str = "echoes") -> Iterator[Mapping[str, object]]:
    """What the journal says of versions."""
    return marks(Disk(), Layout(directory=directory, experiment_name=name), "policy")


def test_no_rollout_is_older_than_allowed_and_the_journal_names_every_version(school: Lab) -> None:
    trainer = Trainer(school.path)

    async def main() -> None:
        policy = Policy("learner", max_lag=1, batch=2)
        async with stream(experiment(), policy=policy, progress=False) as running:
            async for conversation in running:
                await trainer.take(running, conversation)

    asyncio.run(main())

    assert sorted(trainer.seen) == [*range(12)]
    assert max(trainer.lags) <= 1
    directory = school.run_dir("echoes")
    named = {frame["version"]: (frame["sha256"], frame["path"]) for frame in frames(directory.path)}
    assert [*named] == [*range(7)]
    assert named[0] == (None, None)
    assert named[6][1] == str(trainer.file(6))
    assert len({sha256 for sha256, _ in named.values()}) == 7
    policies = directory.summary["policies"]
    assert isinstance(policies, dict)
    assert isinstance(learner := policies["learner"], dict)
    assert (learner["version"], learner["updates"]) == (6, 6)
    assert "learner: version 6, 6 updates" in school.done("status", "runs/echoes").stdout
    school.verified(directory.path)


def test_update_that_fails_changes_nothing(school: Lab) -> None:
    """Wrong weights, an older version, two at once, before the run and after it: each its own error."""
    good, wrong, broken, other = (
        checkpoint(school.path / f"{name}.safetensors", name) for name in ("good", "wrong", "broken", "other")
    )
    (school.path / "pickle.bin").write_bytes(b"x")

    async def main() -> list[tuple[int, int]]:
        running = stream(experiment(), policy=Policy("learner"), progress=False)
        with pytest.raises(WeightUpdateError, match="has not begun"):
            await running.update_weights(good)
        first = await anext(running)
        assert await running.update_weights(good, version=3) == 3
        with pytest.raises(WeightMismatchError, match="wrong names"):
            await running.update_weights(wrong)
        with pytest.raises(WeightUpdateError, match=r"a bug \(learner.py:\d+\)|learner.py"):
            await running.update_weights(broken)
        with pytest.raises(StaleVersionError, match="version 3"):
            await running.update_weights(other, version=3)
        with pytest.raises(WeightUpdateError, match="other formats"):
            await running.update_weights(school.path / "pickle.bin")
        with pytest.raises(WeightUpdateError, match="cannot be read"):
            await running.update_weights("nowhere.safetensors")
        with pytest.raises(WeightUpdateError, match="no policy"):
            await running.update_weights(good, model="other")
        both = await asyncio.gather(running.update_weights(good), running.update_weights(other), return_exceptions=True)
        assert {type(each) for each in both} == {int, UpdateInProgressError}
        found = [span async for conversation in running for span in spans(conversation)]
        with pytest.raises(WeightUpdateError, match="has ended"):
            await running.update_weights(good)
        return [*spans(first), *found]

    found = asyncio.run(main())

    assert {version for span in found for version in span} <= {0, 3, 4}
    assert [frame["version"] for frame in frames(school.run_dir("echoes").path)] == [0, 3, 4]


def test_policy_that_cannot_work_is_refused_before_anything_is_written(school: Lab) -> None:
    other: JsonObject = {"learner": {"backend": "scripted", "scripted_config": {"policy": "echo"}}}

    for policy, content, named in (
        (Policy("teacher"), experiment(), "no model 'teacher'"),
        (Policy("learner"), experiment(model_definitions=other), "cannot update weights"),
        (Policy("learner", version=4), experiment(), "weights of version 4"),
        (Policy("learner", version=4, weights="no.bin"), experiment(), "other formats"),
    ):
        with pytest.raises((ConfigError, RunDirectoryError), match=named):
            asyncio.run(anext(stream(content, policy=policy, progress=False)))  # type: ignore[arg-type]
        assert not (school.path / "runs" / "echoes").exists()
    for settings in ({"max_lag": 1}, {"batch": 0, "max_lag": 0}, {"version": -1}, {"weights": "x"}):
        with pytest.raises(ConfigError, match="policy"):
            Policy("learner", **settings)  # type: ignore[arg-type]
