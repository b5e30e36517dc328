"""`mac-run FILE --mirror URL`: copies of what has ended, and refusals of what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from mac_runner.store import read_run
from tests.cli.lab import AtOnce, Lab, experiment

pytest.importorskip("fsspec")


def copied(lab: Lab) -> dict[str, int]:
    """The run directories in the mirror that are complete, and how many transcripts each has."""
    records = (lab.path / "mirror").rglob("mirror.json")
    return {
        str(path.parent.relative_to(lab.path / "mirror")): read_run(path.parent).counts.done
        for path in records
        if '"is_complete": true' in path.read_text()
    }


def test_run_is_copied_once_it_has_ended_and_not_before(lab: Lab, at_once: AtOnce) -> None:
    file, url = lab.write(experiment(conversations=4)), f"file://{lab.path}/mirror"

    assert at_once(file, "--shard", "1/2", "--out", "half", "--mirror", url, "--quiet").returncode == 0
    assert copied(lab) == {".": 2}


@pytest.mark.ci
def test_every_shard_is_copied_and_a_copy_that_failed_is_made_by_the_next_start(lab: Lab, at_once: AtOnce) -> None:
    file, url = lab.write(experiment(conversations=4)), f"file://{lab.path}/mirror"
    taken = lab.path / "mirror"
    taken.write_text("in the way")

    first = at_once(file, "--shard", "auto/2", "--out", "shared", "--mirror", url, "--quiet")
    assert (first.returncode, first.stderr.count("was not copied")) == (0, 2)
    taken.unlink()
    second = at_once(file, "--shard", "auto/2", "--out", "shared", "--mirror", url, "--quiet")

    assert (second.returncode, second.stderr) == (0, "")
    assert copied(lab) == {"shards/1-of-2": 2, "shards/2-of-2": 2}


def test_object_storage_is_refused_as_a_run_directory_and_nothing_is_made(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())

    process = at_once(file, "--out", "s3://bucket/run", "--quiet")

    assert process.returncode == 2
    assert "s3://bucket/run" in process.stderr
    assert "add --mirror URL" in process.stderr
    assert [path.name for path in lab.path.iterdir()] == ["small.yaml"]


def test_mirror_that_cannot_be_used_is_refused_before_anything_is_made(lab: Lab, at_once: AtOnce) -> None:
    file = lab.write(experiment())

    for more in ((), ("--dry-run",)):
        process = at_once(file, "--mirror", "nowhere://x", *more)
        assert process.returncode == 2
        assert "nowhere://x cannot" in process.stderr
    assert not Path(lab.path / "runs").exists()
