"""A directory of shards: what makes it one, and what readers find in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mac_runner.clock import Clock
from mac_runner.errors import IdentityError, RunDirectoryError, StoreError
from mac_runner.plan import Shard
from mac_runner.store import Disk, Run, ShardsRecord, is_shards, read_shards, read_workers, shard_directories
from mac_runner.store.testing import SESSIONS_PER_SHARD, RunState, encode_shards, shard_directory
from tests.store import player
from tests.store.conftest import FaultySystem, tree


def open_shard(run_dir: Path, clock: Clock, shard: Shard | None, disk: Disk | None = None) -> Run:
    return player.open_toy(run_dir, 1, clock=clock, shard=shard, disk=disk)


@pytest.mark.parametrize(("first", "second"), [(Shard(1, 2), Shard(2, 2)), (None, Shard(1, 1)), (Shard(1, 2), None)])
def test_directory_of_another_part_is_refused(
    run_dir: Path, clock: Clock, first: Shard | None, second: Shard | None
) -> None:
    open_shard(run_dir, clock, first).close()
    before = tree(run_dir / "journal")

    with pytest.raises(IdentityError):
        open_shard(run_dir, clock, second)

    assert tree(run_dir / "journal") == before
    open_shard(run_dir, clock, first).close()


@pytest.mark.ci
def test_shard_stands_before_the_directory_counts_as_a_run(
    tmp_path: Path, clock: Clock, system: FaultySystem, disk: Disk
) -> None:
    """Whatever call a beginning fails at, no run directory of a shard is ever taken for the whole experiment."""
    open_shard(tmp_path / "reference", clock, Shard(1, 2), disk).close()
    for fail_at in range(1, len(system.calls) + 1):
        system.calls.clear()
        system.fail_at = fail_at
        run_dir = tmp_path / str(fail_at)
        with pytest.raises(StoreError, match="ENOSPC"):
            open_shard(run_dir, clock, Shard(1, 2), disk).close()
        if (run_dir / "experiment.yaml").exists():
            with pytest.raises(IdentityError, match="holds shard 1/2"):
                open_shard(run_dir, clock, None)
        open_shard(run_dir, clock, Shard(1, 2)).close()


def test_shard_that_was_given_up_before_it_began_binds_nobody(run_dir: Path, clock: Clock) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "shard.json").write_text('{"of": 2, "shard": 1}')

    open_shard(run_dir, clock, None).close()

    assert not (run_dir / "shard.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"shard": "1", "of": 2}'])
def test_shard_that_cannot_be_read_is_refused(run_dir: Path, clock: Clock, text: str) -> None:
    open_shard(run_dir, clock, Shard(1, 2)).close()
    (run_dir / "shard.json").write_text(text)

    with pytest.raises(RunDirectoryError, match=r"shard\.json"):
        open_shard(run_dir, clock, Shard(1, 2))


RECORD = ShardsRecord(of=12, experiment_name="small", identity="ab12", conversations=30)


def test_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_bytes(encode_shards(RECORD))

    assert read_shards(tmp_path) == RECORD
    assert is_shards(tmp_path)


def test_merged_directory_is_one_of_shards_no_more(tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_bytes(encode_shards(RECORD))
    (tmp_path / "experiment.yaml").touch()

    assert not is_shards(tmp_path)
    assert read_shards(tmp_path) == RECORD


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', "[" * 100_000])
def test_damaged_record_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "shards.json").write_text(text)

    with pytest.raises(RunDirectoryError, match=r"shards\.json"):
        read_shards(tmp_path)


def test_record_of_another_format_is_refused(tmp_path: Path) -> None:
    later = json.loads(encode_shards(RECORD)) | {"format": 2}
    (tmp_path / "shards.json").write_text(json.dumps(later))

    with pytest.raises(RunDirectoryError, match="format 1"):
        read_shards(tmp_path)


def test_shards_that_have_begun_are_found_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "shards.json").write_bytes(encode_shards(RECORD))
    for number in (11, 2):
        place = shard_directory(tmp_path, Shard(number, 12))
        place.mkdir(parents=True)
        (place / "task_manifest.json").touch()
    shard_directory(tmp_path, Shard(3, 12)).mkdir()

    assert [path.name for path in shard_directories(tmp_path)] == ["02-of-12", "11-of-12"]


def test_directory_without_workers_has_none(tmp_path: Path) -> None:
    assert read_workers(tmp_path) == ()


def test_latest_session_of_those_that_began_at_once_is_that_of_a_merge() -> None:
    state = RunState()
    for number in (1, 2):
        state.begin(number * SESSIONS_PER_SHARD + 1)
        state.apply({"kind": "session", "id": "", "started_at": "2026-01-01T00:00:00.000Z"})

    assert state.latest is state.sessions[-1]
