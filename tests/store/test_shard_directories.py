"""A directory of shards: what makes it one, and what readers find in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.plan import Shard
from mac_runner.store import ShardsRecord, is_shards, read_shards, read_workers, shard_directories
from mac_runner.store.layout import SESSIONS_PER_SHARD
from mac_runner.store.run_state import RunState
from mac_runner.store.shards import encode_shards, shard_directory

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
