"""Which weights a fork plays with: those of the turn that it draws again, or others that are named."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import mac_runner
from mac_runner import ConfigError, IdentityError, Policy, RunDirectoryError, RunView, stream
from mac_runner.checkpoints import digest_of
from mac_runner.cli.process import Exit
from mac_runner.store import Disk
from mac_runner.store.testing import Layout, marks
from tests.cli.lab import AtOnce, Lab
from tests.sim.training import ENGINE, checkpoint, experiment, spans


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
    frames = marks(Disk(), Layout(directory=directory, experiment_name="echoes"), "policy")
    return [(frame["version"], frame["sha256"]) for frame in frames]


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
        ended = at_once("fork", "parent", "1", *flags, "--out", "out", "--trust")
        assert (ended.returncode, text in ended.stderr) == (code, True), ended.stderr
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
        ended = at_once("fork", "out", "--trust", *flags)
        assert (ended.returncode, text in ended.stderr) == (Exit.BAD_INPUT, True), ended.stderr
    again = at_once("fork", "out", "--trust", "--policy", "learner=1:moved.safetensors")
    assert again.returncode == Exit.OK, again.stderr
    assert [spans(conversation) for conversation in mac_runner.open_run("out")] == [[(1, 1)] * 3]


def test_run_from_python_goes_on_with_the_recorded_weights_and_ends(trained: Lab) -> None:
    """Nobody trains here, so the run does not wait for a trainer at its end."""
    view = mac_runner.run(experiment(4), out="parent", progress=False)
    assert spans([*view][-1]) == [(3, 3)] * 3
