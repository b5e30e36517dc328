"""A trainer's loop without a real engine: versions, lag, updates that fail, resumes, and the weights of forks."""

from __future__ import annotations

import asyncio
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mac_runner
from mac_runner import (
    Broadcast,
    ConfigError,
    IdentityError,
    Policy,
    RunDirectoryError,
    RunView,
    StaleVersionError,
    UpdateInProgressError,
    WeightMismatchError,
    WeightUpdateError,
    stream,
)
from mac_runner.checkpoints import digest_of
from mac_runner.cli.process import Exit
from mac_runner.reports import status_json, status_text
from mac_runner.scheduler import policies
from mac_runner.store import read_standing
from mac_runner.store.testing import decode_frame, layout_of
from mac_runner.types import JsonObject
from tests.cli.lab import AtOnce, Lab, RunDir
from tests.patience import LIMIT_S
from tests.sim.training import ENGINE, MAX_LAG, checkpoint, experiment, spans, train
from tests.store.frames import scan


@pytest.fixture
def school(lab: Lab) -> Lab:
    """A working directory with an engine that takes weights."""
    (lab.path / "learner.py").write_text(ENGINE)
    return lab


def frames(directory: Path) -> Iterator[Mapping[str, object]]:
    """What the journal says of versions."""
    segments = sorted(layout_of(directory).journal.iterdir())
    records = (record for path in segments for record in scan(path.read_bytes()).records)
    return (record for record in records if record["kind"] == "policy")


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
    learner = directory.summary["policies"]["learner"]
    assert (learner["version"], learner["updates"]) == (6, 6)
    shown = status_text(status_json(read_standing(directory.path), datetime(2025, 1, 1, tzinfo=UTC)))
    assert "learner: version 6, 6 updates" in shown
    school.verified(directory.path)


def test_update_that_fails_changes_nothing(school: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong weights, an older version, two at once, before the run and after it: each its own error."""
    good, wrong, broken, other = (
        checkpoint(school.path / f"{name}.safetensors", name) for name in ("good", "wrong", "broken", "other")
    )
    (school.path / "pickle.bin").write_bytes(b"x")
    is_refused = threading.Event()

    def digest_once_refused(weights: Path) -> str:
        is_refused.wait(LIMIT_S)
        return digest_of(weights)

    async def main() -> list[tuple[int, int]]:
        running = stream(experiment(), policy=Policy("learner"), progress=False)
        with pytest.raises(WeightUpdateError, match="has not begun"):
            await running.update_weights(good)
        first = await anext(running)
        assert await running.update_weights(good, version=3) == 3
        refused: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
            (wrong, {}, WeightMismatchError, "wrong names"),
            (broken, {}, WeightUpdateError, r"learner\.py"),
            (other, {"version": 3}, StaleVersionError, "version 3"),
            (school.path / "pickle.bin", {}, WeightUpdateError, "other formats"),
            ("nowhere.safetensors", {}, WeightUpdateError, "cannot be read"),
            *((good, {"model": model}, WeightUpdateError, "no policy") for model in ("other", "")),
        ]
        for nothing in (None, 5, "", "\0", b"x", [1], {}, {"w": [1.0]}, object()):
            refused.append((nothing, {}, WeightUpdateError, "weight"))
        for weights, more, error, words in refused:
            with pytest.raises(error, match=words):
                await running.update_weights(weights, **more)
        monkeypatch.setattr(policies, "digest_of", digest_once_refused)
        both = [asyncio.ensure_future(running.update_weights(each)) for each in (good, other)]
        (refusal,), (update,) = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        is_refused.set()
        assert await update == 4
        assert isinstance(refusal.exception(), UpdateInProgressError)
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
    at_once(file).refused("weights of version 7")
    assert _without_traces_of_starts(directory.hashes()) == _without_traces_of_starts(before)

    (school.path / "elsewhere.safetensors").rename(weights)
    at_once(file).done()
    assert [frame["version"] for frame in frames(directory.path)] == [0, 7, 7]
    assert _versions(directory) <= {0, 7}
    school.verified(directory.path)


def test_every_combination_that_shares_the_engine_names_the_versions(school: Lab) -> None:
    grid = experiment(6, _grid={"sweep": {"echo.rounds": [2, 3]}})

    trainer = asyncio.run(train(grid, school.path))

    assert len(trainer.used) == 12
    assert max(trainer.used.values()) <= MAX_LAG
    directory = school.path / "runs" / "echoes"
    for run in (directory / path.stem for path in (directory / "experiments").iterdir()):
        named = [int(str(frame["version"])) for frame in frames(run)]
        played = _versions(RunDir(path=run))
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
    manifest = school.path / "run" / "task_manifest.json"
    manifest.write_text(re.sub(r'("status": ?)"finished"', r'\1"pending"', manifest.read_text()))
    opened = mac_runner.open_run("run").turns(columns, open=True).to_pylist()

    assert {(row["group"], row["sample"]) for row in ended} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert sorted(map(repr, opened)) == sorted(map(repr, ended))
    tables = mac_runner.open_run("run").tables
    assert "trl-sft" in tables
    assert "trl-dpo" not in tables, "a run that is not a fork has no pairs"


async def _first(content: JsonObject, policy: Policy) -> None:
    async with stream(content, policy=policy, progress=False) as running:
        await anext(running)


def _versions(run: RunDir) -> set[int]:
    """Those that its conversations were played with."""
    return {version for row in run.index for version in row["policy"]["learner"]}


def _without_traces_of_starts(hashes: dict[str, tuple[int, str]]) -> dict[str, str]:
    """The content of the files."""
    return {name: digest for name, (_, digest) in hashes.items() if digest != "directory"}


@pytest.fixture
def trained(lab: Lab) -> Lab:
    """A run whose conversation 0 is of version 0, 1 of version 1, and 2 of version 2."""
    (lab.path / "learner.py").write_text(ENGINE)

    async def play() -> None:
        policy = Policy("learner", max_lag=0, batch=1)
        async with stream(experiment(3), policy=policy, out="parent", concurrency=1, progress=False) as running:
            for version in (1, 2, 3):
                await anext(running)
                weights = checkpoint(lab.path / f"{version}.safetensors", f"v{version}")
                await running.update_weights(weights, version=version)

    asyncio.run(play())
    played = [spans(conversation) for conversation in mac_runner.open_run(lab.path / "parent")]
    assert played == [[(0, 0)] * 3, [(1, 1)] * 3, [(2, 2)] * 3]
    return lab


def fork(game: int, out: str, policy: Policy | None = None, turn: str = "#1") -> RunView:
    """A fork of the run."""
    return mac_runner.fork("parent", game, turn=turn, out=out, policy=policy, trust=True, progress=False)


def versions(directory: Path) -> list[tuple[object, object]]:
    """The versions and digests that the journal of a fork names."""
    return [(frame["version"], frame["sha256"]) for frame in frames(directory)]


def test_fork_plays_with_the_version_of_its_turn(trained: Lab) -> None:
    for game, version in ((0, 0), (1, 1), (2, 2)):
        view = fork(game, f"fork-{game}")
        assert [spans(conversation) for conversation in view] == [[(version, version)] * 3]
        digest = digest_of(trained.path / f"{version}.safetensors") if version else None
        assert {*versions(trained.path / f"fork-{game}")} == {(version, digest)}
        trained.verified(trained.path / f"fork-{game}")
    again = mac_runner.fork("fork-1", 0, turn="#2", out="again", trust=True, progress=False)
    assert [spans(conversation) for conversation in again] == [[(1, 1)] * 3]
    value = mac_runner.value("parent", 1, turn="#1", draws=2, outcome="echoed", out="value", trust=True, progress=False)
    assert value["draws"] == 2
    assert {span for each in mac_runner.open_run("value") for span in spans(each)} == {(1, 1)}


def test_fork_plays_with_the_version_that_is_named(trained: Lab) -> None:
    weights = checkpoint(trained.path / "9.safetensors", "v9")

    for named, version in (
        (Policy("learner"), 0),
        (Policy("learner", version=1), 1),
        (Policy("learner", version=9, weights=weights), 9),
    ):
        view = fork(2, f"fork-{version}", named)
        assert [spans(conversation) for conversation in view] == [[(2, 2), (version, version), (version, version)]]
        known = {number for number, _ in versions(trained.path / f"fork-{version}")}
        assert known == {2, version}, "the journal names the version of each reply"
    with pytest.raises(IdentityError, match="another fork"):
        fork(2, "fork-1", Policy("learner", version=2))


@pytest.mark.ci
def test_fork_without_its_weights_is_refused_and_writes_nothing(trained: Lab, at_once: AtOnce) -> None:
    (trained.path / "1.safetensors").rename(trained.path / "moved.safetensors")

    for named, message in (
        (None, r"weights of version 1 .*1.safetensors.* cannot be read.*--policy learner=1:PATH"),
        (Policy("learner", version=1), "weights of version 1"),
        (Policy("learner", version=1, weights="2.safetensors"), "those found have the digest"),
        (Policy("learner", version=8), "weights of version 8 .*not recorded"),
        (Policy("learner", version=8, weights="8.safetensors"), "cannot be read"),
        (Policy("teacher", version=1), "no agent of the fork has the model 'teacher'"),
        (Policy("learner", version=1, max_lag=1, batch=1), "leave out max_lag"),
    ):
        with pytest.raises((ConfigError, RunDirectoryError), match=message):
            fork(1, "out", named)
        assert not (trained.path / "out").exists()
    for flags, code, text in (
        (("--turn", "#1"), Exit.BAD_INPUT, "weights of version 1"),
        (("--turn", "#1", "--dry-run"), Exit.BAD_INPUT, "weights of version 1"),
        (("--turn", "#1", "--policy", "learner"), Exit.BAD_INPUT, "write MODEL=VERSION"),
        (("--turn", "#1", "--policy", "learner=1:2.safetensors"), Exit.BAD_INPUT, "those found have the digest"),
        (("--turn", "#1", "--policy", "learner=1:moved.safetensors"), Exit.OK, ""),
    ):
        at_once("fork parent 1", *flags, "--out", "out", "--trust").ends(code, text)
    assert [spans(conversation) for conversation in mac_runner.open_run("out")] == [[(1, 1)] * 3]


def test_fork_of_conversations_of_several_versions_names_one(trained: Lab) -> None:
    with pytest.raises(ConfigError, match=r"'learner' \(0, 1, 2\).*=2"):
        mac_runner.fork("parent", where=["finished"], turn="#1", out="out", trust=True, progress=False)
    named = Policy("learner", version=2)
    view = mac_runner.fork("parent", where=["finished"], turn="#1", out="out", policy=named, trust=True, progress=False)
    assert [spans(conversation)[1:] for conversation in view] == [[(2, 2)] * 2] * 3


def test_fork_that_changes_the_model_names_its_version(trained: Lab) -> None:
    source = (trained.path / "learner.py").read_text()
    (trained.path / "other.py").write_text(source)
    other = {"model_definitions.learner.backend": "./other.py:Learner"}
    with pytest.raises(ConfigError, match="changes its definition"):
        mac_runner.fork("parent", 1, turn="#1", out="out", set=other, trust=True, progress=False)


@pytest.mark.ci
def test_fork_that_was_stopped_goes_on_with_its_version_or_is_refused(trained: Lab, at_once: AtOnce) -> None:
    moved = trained.path / "moved.safetensors"
    fork(1, "out")
    journal = trained.path / "out" / "journal"
    for segment in sorted(journal.iterdir())[1:]:
        segment.unlink()  # Nothing has been played yet.
    shutil.rmtree(trained.path / "out" / "transcripts")
    (trained.path / "1.safetensors").rename(moved)

    for flags, text in (
        ((), "weights of version 1"),
        (("--policy", "learner=2:2.safetensors"), "is a fork that plays with version 1"),
        (("--policy", "learner=1:2.safetensors"), "those found have the digest"),
    ):
        at_once("fork out --trust", *flags).refused(text)
    at_once("fork out --trust --policy learner=1:moved.safetensors").done()
    assert [spans(conversation) for conversation in mac_runner.open_run("out")] == [[(1, 1)] * 3]


def test_run_from_python_goes_on_with_the_recorded_weights_and_ends(trained: Lab) -> None:
    """Nobody trains here, so the run does not wait for a trainer at its end."""
    view = mac_runner.run(experiment(4), out="parent", progress=False)
    assert spans([*view][-1]) == [(3, 3)] * 3
