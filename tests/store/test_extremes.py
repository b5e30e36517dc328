"""Very large, very many, and nothing at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, read_run, verify_run
from mac_runner.types import RecordedReply, Reply
from tests.faults.crashfs import CrashDisk
from tests.store import player

MEBIBYTE = 1 << 20
NOBODY = 65_534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of the superuser, who may write anywhere."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


def replies(n: int, size_chars: int) -> list[RecordedReply]:
    return [
        RecordedReply(turn_key=f"{i}/Ann", prompt_sha256="0" * 64, reply=Reply(text=f"{i} " + "x" * size_chars))
        for i in range(n)
    ]


@pytest.mark.ci
@pytest.mark.parametrize(("turns", "size_chars"), [(0, 0), (1_000, 20), (20, MEBIBYTE // 2)], ids=str)
def test_transcript_of_any_length_is_published_read_and_resumed(run_dir: Path, turns: int, size_chars: int) -> None:
    said = replies(turns, size_chars)
    with player.open_toy(run_dir, 2) as run:
        half_done, ended = (task for task, _ in run.unfinished())
        for reply in said:
            run.reply(half_done, reply)
        run.publish(ended, player.transcript(ended, said))

    with player.open_toy(run_dir, 2) as run:
        ((_, recorded),) = run.unfinished()
        assert recorded == tuple(said)
    contents = read_run(run_dir)
    (row,) = contents.rows()
    assert row["size_bytes"] == (run_dir / "transcripts/toy_00001.json").stat().st_size >= 2 * turns * size_chars
    assert verify_run(run_dir, rebuild=lambda transcript: transcript).ok


@pytest.mark.ci
def test_folder_of_ten_thousand_transcripts_is_resumed(tmp_path: Path) -> None:
    n, disk = 10_000, Disk(CrashDisk(tmp_path))
    with player.open_toy(tmp_path / "run", n, disk=disk) as run:
        for task, _ in run.unfinished():
            run.publish(task, player.transcript(task, []))
    with player.open_toy(tmp_path / "run", n + 1, disk=disk) as run:
        assert run.counts == (n + 1, n, 0)
        assert [task.index for task, _ in run.unfinished()] == [n]

    assert len(disk.names(tmp_path / "run/transcripts")) == n


def test_folder_that_may_not_be_written_is_told_and_left_alone() -> None:
    with tempfile.TemporaryDirectory() as place:
        run_dir = Path(place) / "run"
        run_dir.mkdir()
        Path(place).chmod(0o755)
        run_dir.chmod(0o555)
        with (
            as_nobody(),
            pytest.raises(StoreError, match=r"writable|check"),
        ):
            player.open_toy(run_dir, 1)

        assert [*run_dir.iterdir()] == []
