"""What a conversation more costs the store, counted; and very large, very many, and nothing at all."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mac_runner.errors import StoreError
from mac_runner.store import Disk, is_complete, journal, read_run, verify_run, writer
from mac_runner.store.testing import (
    MANIFEST_INTERVAL_S,
    SAMPLE_CONVERSATIONS,
    THREAD_NAME,
    DoneRow,
    Layout,
    Line,
    Manifest,
    encode_config,
    encode_json,
    in_task_order,
    records_of,
)
from mac_runner.types import JsonObject, RecordedReply, Reply
from tests.faults.crashfs import CrashDisk
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock

KB = 1_024
TURNS_RECORDED = 3


class Counting(FaultySystem):
    """The operating system, with an account of what went to which file, and to which directory where it is new."""

    def __init__(self) -> None:
        super().__init__()
        self.written_bytes: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()
        self.read_from: Counter[str] = Counter()
        self.threads: set[str] = set()
        self.before_sync: Callable[[str], object] = lambda name: None
        self.gate = lambda _call, _name: self.threads.add(threading.current_thread().name)

    def create(self, path: Path) -> int:
        descriptor = super().create(path)
        self.file_names[descriptor] = path.parent.name
        return descriptor

    def open_read(self, path: Path) -> int:
        self.read_from[path.parent.name] += 1
        return super().open_read(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data)
        self.written_bytes[self.file_names[descriptor]] += written
        return written

    def fsync(self, descriptor: int) -> None:
        name = self.file_names.get(descriptor, "")
        self.before_sync(name)
        self.syncs[name] += 1
        super().fsync(descriptor)


def row_of(number: int, task_id: str) -> JsonObject:
    return {
        "task_id": task_id,
        "index": number,
        "status": "finished",
        "failure": None,
        "transcript": f"transcripts/{task_id}.json",
        "sha256": f"{number:064d}",
        "size_bytes": 4_000,
        "counts": {
            "turns": 6,
            "corrections": 0,
            "defaults": 0,
            "tokens": {"prompt": 90, "completion": 6, "timing": {"cached": 0}},
        },
        "outcome": {"kind": "toy", "rounds": 2},
        "timing": {"ended_at": "2025-01-01T00:00:00.000Z", "open_s": 1.5},
    }


def leave_run(directory: Path, *, planned: int, done: int, half_done: int = 0) -> None:
    """What a killed run leaves, as far as the store looks: names and sizes of transcripts, but nothing in them."""
    layout = Layout(directory=directory, experiment_name=player.NAME)
    layout.transcripts.mkdir(parents=True)
    layout.journal.mkdir()
    layout.config.write_bytes(encode_config(player.resolved()))
    ids = dict(player.plan(planned).ids())
    frames = [journal.session_frame(1, started_at="2025-01-01T00:00:00.000Z")]
    rows = []
    for task, number in zip(player.plan(done + half_done)(), range(done + half_done), strict=True):
        frames += [journal.reply_frame(task.task_id, n, player.answer(task, [])) for n in range(TURNS_RECORDED)]
        if number < done:
            rows.append(row_of(number, task.task_id))
            with layout.transcript(task.task_id).open("wb") as transcript:
                transcript.truncate(4_000)
            frames.append(journal.done_frame(rows[-1]))
    layout.segment(1).write_bytes(b"".join(frames))
    layout.index.write_bytes(b"".join(encode_json(row) + b"\n" for row in rows))
    layout.manifest.write_bytes(b"".join(Manifest(player.NAME, ids).encode("2025-01-01T00:00:00.000Z")))


@contextmanager
def peak_bytes() -> Iterator[list[int]]:
    """The most memory that was in use inside the block beyond what was before it."""
    found: list[int] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        yield found
        found.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()


async def written_bytes_per_conversation(directory: Path, n: int, clock: StillClock) -> float:
    """Each conversation is a batch of its own, so long after the last that the manifest is due whenever it may be."""
    system = Counting()
    with player.open_toy(directory, n, clock=clock, disk=Disk(system)) as run:
        for task, _ in run.unfinished():
            run.reply(task, player.answer(task, []))
            run.publish(task, player.transcript(task, []))
            clock.now_s += MANIFEST_INTERVAL_S
            await run.flow()
    return system.written_bytes.total() / n


@pytest.mark.ci
def test_bytes_written_for_a_conversation_do_not_depend_on_how_many_there_are(
    tmp_path: Path, clock: StillClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WRITE_BACKLOG_ITEMS_MAX", 1)
    monkeypatch.setattr(writer, "COMMIT_LINGER_S", 0.0)
    few = asyncio.run(written_bytes_per_conversation(tmp_path / "few", 100, clock))
    many = asyncio.run(written_bytes_per_conversation(tmp_path / "many", 800, clock))

    assert many < 1.2 * few


def test_a_hundred_conversations_share_their_syncs(run_dir: Path) -> None:
    """While the first batch waits for the disk the others gather: one sync of replies, one of `done` frames for all."""
    system = Counting()
    with player.open_toy(run_dir, 100, disk=Disk(system)) as run:
        system.syncs.clear()
        is_handed_over: list[bool] = []
        system.before_sync = lambda name: [None for _ in iter(lambda: bool(is_handed_over), True)]
        for task, _ in run.unfinished():
            run.reply(task, player.answer(task, []))
            run.publish(task, player.transcript(task, []))
        is_handed_over.append(True)
        run.contents()
        in_journal = system.syncs["journal"]

    assert in_journal <= 4
    assert system.syncs["transcripts"] == 100


def test_the_thread_of_the_event_loop_never_touches_the_disk_of_a_run_under_way(run_dir: Path) -> None:
    system = Counting()
    with player.open_toy(run_dir, 20, disk=Disk(system)) as run:
        system.threads.clear()
        player.play(run)
        run.checkpoint({"models": {}})
        run.write_summary({})
        run.contents()

        assert system.threads == {THREAD_NAME}


def test_a_resume_takes_apart_only_the_frames_it_needs(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_run(run_dir, planned=400, done=200, half_done=5)
    taken_apart: Counter[str] = Counter()

    def counted(line: Line) -> tuple[tuple[JsonObject, ...], bool]:
        found = records_of(line)
        taken_apart.update(str(record["kind"]) for record in found[0])
        return found

    monkeypatch.setattr(journal, "records_of", counted)
    system = Counting()
    with player.open_toy(run_dir, 400, disk=Disk(system)) as run:
        assert run.counts == (400, 200, 0)
        assert [len(replies) for _, replies in run.unfinished()][:6] == [TURNS_RECORDED] * 5 + [0]
        # Nor is a transcript of a conversation that is done opened; the journal is gone through as often as asked here.
        assert system.read_from["transcripts"] == 0
        assert system.read_from["journal"] <= 4 * 2
        assert taken_apart["done"] <= 200 + SAMPLE_CONVERSATIONS
        assert taken_apart["reply"] == 5 * TURNS_RECORDED


def test_whether_a_killed_run_is_complete_is_known_without_its_journal(run_dir: Path) -> None:
    leave_run(run_dir, planned=20, done=10)
    for name in ("", "summary.json"):
        (run_dir / (name or "experiment.yaml")).touch()
        system = Counting()

        assert not is_complete(player.asked(run_dir, 20), disk=Disk(system))
        assert system.read_from["journal"] == 0


@pytest.mark.ci
def test_memory_of_a_resume_grows_by_less_than_a_kilobyte_with_each_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mac_runner.store.disk.READ_CHUNK_BYTES", 16 * KB)
    peaks = {}
    for n in (500, 2_500):
        directory = tmp_path / str(n)
        leave_run(directory, planned=n, done=n - 10, half_done=5)
        with peak_bytes() as found, player.open_toy(directory, n) as run:
            assert run.counts.done == n - 10
            assert sum(1 for _ in run.contents().rows()) == n - 10
        peaks[n] = found[0]

    assert peaks[2_500] - peaks[500] < 2_000 * KB


@pytest.mark.ci
def test_rows_are_put_in_order_without_holding_more_than_those_that_wait() -> None:
    """Conversations end in about the order they began: here each of twenty before the nineteen it began behind."""
    n, span = 10_000, 20
    ended = (start + span - 1 - place for start in range(0, n, span) for place in range(span))
    ids = [f"toy_{number:05d}" for number in range(n)]
    with peak_bytes() as found:
        rows = in_task_order((DoneRow.of(row_of(number, ids[number])) for number in ended), ids)
        are_right = all(row.json == encode_json(row_of(number, ids[number])) for number, row in enumerate(rows))

    assert are_right
    assert found[0] < 4 * span * KB


def test_rows_that_ended_in_any_order_are_put_in_order(run_dir: Path) -> None:
    with player.open_toy(run_dir, 7) as run:
        for task, _ in sorted(run.unfinished(), key=lambda item: -item[0].index):
            run.publish(task, player.transcript(task, []))

    index = (run_dir / "toy_index.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["index"] for line in index] == [0, 1, 2, 3, 4, 5, 6]
    assert [row["index"] for row in read_run(run_dir).rows()] == [6, 5, 4, 3, 2, 1, 0]


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
        with as_nobody(), pytest.raises(StoreError, match=r"writable|check"):
            player.open_toy(run_dir, 1)

        assert [*run_dir.iterdir()] == []
