"""A trainer's loop without a real engine: versions, lag, updates that fail, and resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest

import mac_runner
from mac_runner import (
    Broadcast,
    ConfigError,
    Policy,
    RunDirectoryError,
    StaleVersionError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
    stream,
)
from mac_runner.checkpoints import digest_of
from mac_runner.cli.process import Exit
from mac_runner.reports import status_json, status_text
from mac_runner.store import Disk, read_standing
from mac_runner.store.testing import Layout, decode_frame, marks
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir
from tests.sim.training import ENGINE, MAX_LAG, checkpoint, experiment, spans, train


@pytest.fixture
def school(lab: Lab) -> Lab:
    """A working directory with an engine that takes weights."""
    (lab.path / "learner.py").write_text(ENGINE)
    return lab


def frames(directory: Path) -> Iterator[Mapping[str, object]]:
    """What the journal says of versions."""
    return marks(Disk(), Layout(directory=directory, experiment_name="echoes"), "policy")


def test_no_rollout_is_older_than_allowed_and_the_journal_names_every_version(school: Lab) -> None:
    trainer = asyncio.run(train(experiment(), school.path))

    assert len(trainer.used) == 12
    assert max(trainer.used.values()) <= MAX_LAG
    directory = school.run_dir("echoes")
    named = {frame["version"]: (frame["sha256"], frame["path"]) for frame in frames(directory.path)}
    assert [*named] == [*range(7)]
    assert named[0] == (None, None)
    for version in range(1, 7):
        assert named[version] == (digest_of(trainer.file(version)), str(trainer.file(version)))
    policies = directory.summary["policies"]
    assert isinstance(policies, dict)
    assert isinstance(learner := policies["learner"], dict)
    assert (learner["version"], learner["updates"]) == (6, 6)
    shown = status_text(status_json(read_standing(directory.path), datetime.now(UTC)))
    assert "learner: version 6, 6 updates" in shown
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
        with pytest.raises(WeightUpdateError, match=r"learner\.py"):
            await running.update_weights(broken)
        with pytest.raises(StaleVersionError, match="version 3"):
            await running.update_weights(other, version=3)
        with pytest.raises(WeightUpdateError, match="other formats"):
            await running.update_weights(school.path / "pickle.bin")
        with pytest.raises(WeightUpdateError, match="cannot be read"):
            await running.update_weights("nowhere.safetensors")
        with pytest.raises(WeightUpdateError, match="no policy"):
            await running.update_weights(good, model="other")
        for nothing in (None, 5, "", "\0", b"x", [1], {}, {"w": [1.0]}, object()):
            with pytest.raises(WeightUpdateError, match="weight"):
                await running.update_weights(nothing)  # type: ignore[arg-type]
        with pytest.raises(WeightUpdateError, match="no policy"):
            await running.update_weights(good, model="")
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
            asyncio.run(_first(content, policy))
        assert not (school.path / "runs" / "echoes").exists()
    for settings in (
        {"max_lag": 1},
        {"batch": 0, "max_lag": 0},
        {"version": -1},
        {"version": 10**18},
        {"weights": "x"},
        {"weights": 3, "version": 1},
        {"model": 5},
    ):
        with pytest.raises(ConfigError, match="policy"):
            Policy(**{"model": "learner", **settings})  # type: ignore[arg-type]
    for wrong in ("learner", ["learner"], 5, {"learner": 1}, [Policy("learner"), Policy("learner", version=1)]):
        with pytest.raises(ConfigError, match="policy"):
            stream(experiment(), policy=wrong)  # type: ignore[arg-type]
    for address, timeout_s in ((5, 1.0), ("host:1", 0), ("host:1", float("nan")), ("host:1", "1")):
        with pytest.raises(ConfigError, match="Broadcast"):
            Broadcast(address, timeout_s)  # type: ignore[arg-type]


@pytest.mark.ci
def test_resume_goes_on_with_the_recorded_weights_or_refuses(school: Lab, at_once: AtOnce) -> None:
    """They are found where they lay, by the command line too; others, and a version below, are refused."""
    content = experiment()
    weights = checkpoint(school.path / "7.safetensors", "v7")

    async def begun() -> None:
        # Eight may begin up to version 7.
        async with stream(content, policy=Policy("learner", max_lag=0, batch=1), progress=False) as running:
            await anext(running)
            await running.update_weights(weights, version=7)
            await anext(running)

    asyncio.run(begun())
    directory = school.run_dir("echoes")
    before = directory.hashes()
    other = checkpoint(school.path / "other.safetensors", "v8")
    weights.rename(school.path / "elsewhere.safetensors")

    for policy, named in (
        (Policy("learner"), "replies of version 7"),
        (Policy("learner", version=7), "cannot be read"),
        (Policy("learner", version=7, weights=other), "those found have the digest"),
        (Policy("learner", version=8), "the weights of version 8"),
    ):
        with pytest.raises(RunDirectoryError, match=named):
            asyncio.run(_first(content, policy))
    file = school.write(content)
    refused = at_once(file)
    assert (refused.returncode, "weights of version 7" in refused.stderr) == (2, True), refused.stderr
    assert _without_traces_of_starts(directory.hashes()) == _without_traces_of_starts(before)

    (school.path / "elsewhere.safetensors").rename(weights)
    assert at_once(file).returncode == Exit.OK
    assert [frame["version"] for frame in frames(directory.path)] == [0, 7, 7]
    ended = {version for row in directory.index for version in _versions(row)}
    assert ended <= {0, 7}
    school.verified(directory.path)


def test_every_combination_that_shares_the_engine_names_the_versions(school: Lab) -> None:
    grid = experiment(6, _grid={"sweep": {"echo.rounds": [2, 3]}})

    trainer = asyncio.run(train(grid, school.path))

    assert len(trainer.used) == 12
    assert max(trainer.used.values()) <= MAX_LAG
    for journal in (school.path / "runs" / "echoes").glob("*/journal"):
        named = [int(str(frame["version"])) for frame in frames(journal.parent)]
        played = {version for row in RunDir(path=journal.parent).index for version in _versions(row)}
        assert named == sorted(named)
        assert played <= {*named}
        assert len(played) > 1
    school.verified(school.path / "runs" / "echoes")


def test_open_replies_have_the_group_and_the_sample_of_their_conversation(school: Lab) -> None:
    """As those of ended ones do."""
    content = experiment(4, conversation_config={"environment": "echo", "conversations": 4, "samples_per_task": 2})
    mac_runner.run(content, out="run", progress=False)
    columns = ["conversation", "number", "group", "sample"]
    ended = mac_runner.open_run("run").turns(columns).to_pylist()

    for segment in (school.path / "run" / "journal").iterdir():  # As after a kill before the first end.
        lines = segment.read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if (frame := decode_frame(line.rstrip())) is None or frame["kind"] != "done"]
        segment.write_bytes(b"".join(kept))
    opened = mac_runner.open_run("run").turns(columns, open=True).to_pylist()

    assert {(row["group"], row["sample"]) for row in ended} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert sorted(map(repr, opened)) == sorted(map(repr, ended))
    tables = mac_runner.open_run("run").tables
    assert "trl-sft" in tables
    assert "trl-dpo" not in tables, "a run that is not a fork has no pairs"


async def _first(content: JsonObject, policy: Policy) -> None:
    async with stream(content, policy=policy, progress=False) as running:
        await anext(running)


def _versions(row: JsonObject) -> list[object]:
    policy = row["policy"]
    assert isinstance(policy, dict)
    span = policy["learner"]
    assert isinstance(span, list)
    return [*span]


def _without_traces_of_starts(hashes: dict[str, tuple[int, str]]) -> dict[str, str]:
    """The content of the files."""
    return {name: digest for name, (_, digest) in hashes.items() if digest != "directory"}
