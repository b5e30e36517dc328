from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from mac_runner.errors import RunDirectoryError, StoreError
from mac_runner.store import Disk, System, read_run, writer
from mac_runner.store.testing import MANIFEST_INTERVAL_S
from tests.patience import LIMIT_S, wait_for
from tests.store import player
from tests.store.conftest import FaultySystem, StillClock, edit_journal, join_writer, tree

CALLS_IN_A_WAIT = 8


def index_lines(run_dir: Path) -> list[bytes]:
    return (run_dir / "toy_index.jsonl").read_bytes().splitlines()


def statuses(run_dir: Path) -> list[str]:
    manifest = json.loads((run_dir / "task_manifest.json").read_bytes())
    return [task["status"] for task in manifest["tasks"]]


def play_all(run_dir: Path, n: int) -> None:
    with player.open_toy(run_dir, n) as run:
        player.play(run)
        run.write_summary({"conversations": n})


def test_run_is_written_down_whole(run_dir: Path) -> None:
    play_all(run_dir, 5)

    assert yaml.safe_load((run_dir / "experiment.yaml").read_bytes()) == player.resolved()
    assert statuses(run_dir) == ["finished"] * 5
    assert [json.loads(line)["index"] for line in index_lines(run_dir)] == [0, 1, 2, 3, 4]
    assert json.loads((run_dir / "summary.json").read_bytes()) == {"conversations": 5}
    assert sorted(path.name for path in (run_dir / "transcripts").iterdir()) == [f"toy_{i:05d}.json" for i in range(5)]
    assert player.verified(run_dir).ok


def test_run_goes_on_from_the_last_recorded_reply(run_dir: Path) -> None:
    with player.open_toy(run_dir, 3) as run:
        assert player.play(run, turns=6) == 6
    with player.open_toy(run_dir, 3) as run:
        assert [(task.index, len(replies)) for task, replies in run.unfinished()] == [(1, 2), (2, 0)]
    with player.open_toy(run_dir, 3) as run:
        assert run.counts == (3, 1, 0)
        assert player.play(run) == 6
    assert player.verified(run_dir).ok


def test_deaths_are_remembered_over_sessions_until_the_task_is_done(run_dir: Path) -> None:
    first, second = player.plan(2)()
    for session in range(3):
        with player.open_toy(run_dir, 2) as run:
            assert run.deaths(first) == ({"1/Ann/0/0": session, "0/Ann/0/0": session} if session else {})
            assert run.deaths(second) == {}
            run.death(first, "1/Ann/0/0")
            run.death(first, "0/Ann/0/0")
            assert run.deaths(first)["1/Ann/0/0"] == session + 1
    for _ in range(2):
        with player.open_toy(run_dir, 2) as run:
            player.play(run)
            assert run.deaths(first) == {}

    assert player.verified(run_dir).ok


def test_unfinished_tasks_are_made_one_by_one_and_done_ones_never(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_all(run_dir, 100)
    made: list[int] = []

    def seed(index: int) -> int:
        made.append(index)
        return index

    monkeypatch.setattr(player, "stable_hash", seed)
    with player.open_toy(run_dir, 1_000) as run:
        assert made == []
        task, _ = next(run.unfinished())

    assert task.index == 100
    assert made == [100]


def test_smaller_plan_does_not_shrink_the_manifest(run_dir: Path) -> None:
    player.played(run_dir, 10, turns=4)
    with player.open_toy(run_dir, 3) as run:
        assert run.counts == (10, 1, 0)
        player.play(run)

    assert statuses(run_dir) == ["finished"] * 3 + ["pending"] * 7
    assert read_run(run_dir).counts == (10, 3, 0)


def test_failed_conversation_is_done_and_counted(run_dir: Path) -> None:
    with player.open_toy(run_dir, 2) as run:
        task, _ = next(run.unfinished())
        run.publish(task, player.transcript(task, [], "the engine refused"))
    with player.open_toy(run_dir, 2) as run:
        assert [task.index for task, _ in run.unfinished()] == [1]
        assert run.counts == (2, 0, 1)

    assert statuses(run_dir) == ["failed", "pending"]


def test_survey_counts_what_is_left_and_looking_changes_nothing(tmp_path: Path) -> None:
    nothing, half, whole = (tmp_path / name for name in ("nothing", "half", "whole"))
    player.played(half, 5, turns=7)
    play_all(whole, 5)
    before = tree(tmp_path)
    counts = []
    for run_dir in (nothing, half, whole):
        found = player.surveyed(run_dir, 5)
        counts.append((found.finished, found.failed, found.half_done, found.untouched, found.recorded_replies))
        assert (found.planned, found.is_complete) == (5, run_dir == whole)
    read_run(whole)
    player.verified(whole)

    assert counts == [(0, 0, 0, 5, 0), (1, 0, 1, 3, 3), (5, 0, 0, 0, 0)]
    assert tree(tmp_path) == before
    assert not nothing.exists()


def test_second_publication_of_a_task_leaves_the_first_in_place(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1) as run:
        task, _ = next(run.unfinished())
        replies = [player.answer(task, [])]
        run.publish(task, player.transcript(task, replies))
        run.publish(task, player.transcript(task, replies, "another story"))

    assert json.loads((run_dir / "transcripts/toy_00000.json").read_bytes())["failure"] is None
    assert read_run(run_dir).counts == (1, 1, 0)


def test_lost_reply_costs_only_what_its_own_task_did_after_it(run_dir: Path) -> None:
    with player.open_toy(run_dir, 3) as run:
        for task, _ in run.unfinished():
            for reply in player.answers(task, 3):
                run.reply(task, reply)
    second, other = (b'"toy_00001","kind":"reply","model":"m","n":%d,' % n for n in (1, 7))
    edit_journal(run_dir, lambda data: data.replace(second, other))

    with player.open_toy(run_dir, 3) as run:
        assert [len(replies) for _, replies in run.unfinished()] == [3, 1, 3]
    with player.open_toy(run_dir, 3) as run:
        assert player.play(run) == 1 + 3 + 1
    report = player.verified(run_dir)
    assert (report.damaged, len(report.findings)) == (1, 1)


def test_torn_tail_of_a_killed_session_does_no_harm(run_dir: Path) -> None:
    player.played(run_dir, 2, turns=2)
    segment = run_dir / "journal/000001.jsonl"
    whole = segment.read_bytes()
    start = whole.rindex(b"\n", 0, whole.index(b'"n":1')) + 1
    segment.write_bytes(whole[: start + 40])
    (run_dir / "events.jsonl").write_bytes(b'{"time":"20')

    play_all(run_dir, 2)
    assert player.verified(run_dir).ok
    assert (run_dir / "events.jsonl").read_bytes().splitlines()[0] == b'{"time":"20'


def test_what_a_killed_session_left_unsynced_is_synced_before_anything_is_built_on_it(
    run_dir: Path, system: FaultySystem, disk: Disk
) -> None:
    player.played(run_dir, 2, turns=6)
    with player.begun(player.open_toy(run_dir, 2, disk=disk)):
        begun = system.calls.index(("create", "000002.jsonl"))

    assert {("fsync", "000001.jsonl"), ("fsync_directory", "journal"), ("fsync_directory", "transcripts")} <= {
        *system.calls[:begun]
    }


def test_another_setting_goes_on_and_is_noted(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    player.played(run_dir, 2, turns=2)
    changed = player.resolved(description="another")
    found = player.surveyed(run_dir, 2, changed)
    with player.open_toy(run_dir, 2, config=changed) as run:
        assert player.play(run) == 6

    assert found.changed_settings == snapshot
    assert yaml.safe_load((run_dir / "experiment.yaml").read_bytes()) == changed
    assert b'"event":"EVENT_SETTINGS_CHANGED"' in (run_dir / "events.jsonl").read_bytes()


def test_directory_used_for_something_else_is_refused_and_left_alone(run_dir: Path) -> None:
    run_dir.mkdir(parents=True)
    (run_dir / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex.*--out"):
        player.open_toy(run_dir, 1)

    assert list(tree(run_dir)) == ["thesis.tex"]


def test_name_that_could_lead_out_of_the_directory_is_refused(run_dir: Path, subtests: pytest.Subtests) -> None:
    contents = read_run(player.played(run_dir, 1))

    for name in ("../x", "/x", ".x", "a/b", "a\0b", "x" * 300, ""):
        with subtests.test(name[:9]), pytest.raises(RunDirectoryError, match="file name"):
            contents.transcript(name)


def test_events_bear_the_time(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 1, clock=clock) as run:
        clock.now_s += 2.5
        run.event("EVENT_X", {"text": "\ud800"})

    event = json.loads((run_dir / "events.jsonl").read_bytes())
    assert event == {"time": "2025-01-01T00:00:02.500Z", "elapsed_s": 2.5, "event": "EVENT_X", "text": "\ud800"}


def test_contents_holds_all_that_was_handed_over(run_dir: Path) -> None:
    with player.open_toy(run_dir, 5) as run:
        player.play(run)
        run.checkpoint({"models": {}})
        contents = run.contents()

        assert contents.counts == (5, 5, 0)
        assert len(list(contents.rows())) == 5
        assert contents.transcript("toy_00004")["status"] == "finished"
        with pytest.raises(RunDirectoryError, match="no transcript of 'toy_00009'"):
            contents.transcript("toy_00009")


def test_manifest_is_written_at_most_once_an_interval(
    run_dir: Path, clock: StillClock, system: System, disk: Disk
) -> None:
    with player.begun(player.open_toy(run_dir, 6, clock=clock, disk=disk)) as run:
        calls: list[tuple[str, str]] = system.calls  # type: ignore[attr-defined]
        work = run.unfinished()
        for seconds in (0.0, MANIFEST_INTERVAL_S, 0.1):
            before = calls.count(("replace", "task_manifest.json"))
            clock.now_s += seconds
            task, _ = next(work)
            run.publish(task, player.transcript(task, []))
            run.contents()

            assert calls.count(("replace", "task_manifest.json")) - before == (seconds > 1)


def test_flow_waits_while_too_much_waits_for_the_disk(
    run_dir: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WRITE_BACKLOG_ITEMS_MAX", 1)
    go_on = threading.Event()

    async def fill() -> tuple[bool, int]:
        with player.open_toy(run_dir, 1, disk=disk) as run:
            await run.flow()
            system.gate = lambda call, name: go_on.wait(LIMIT_S)
            run.event("EVENT_X", {})
            waiting = asyncio.ensure_future(run.flow())
            await asyncio.sleep(0)
            was_waiting = not waiting.done()
            go_on.set()
            await asyncio.wait_for(waiting, LIMIT_S)
            return was_waiting, run.backlog

    assert asyncio.run(fill()) == (True, 0)


def test_closed_run_takes_nothing_more(run_dir: Path) -> None:
    run = player.open_toy(run_dir, 1)
    run.close()
    run.close()

    with pytest.raises(StoreError, match="closed"):
        run.event("EVENT_X", {})


@pytest.mark.ci
def test_disk_that_is_slow_and_not_stuck_is_waited_for(
    run_dir: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the time that a disk may hang, this one makes a few of the calls of a batch: something gets done."""
    may_call, waits, came = threading.Semaphore(0), 0, writer.Writer._came

    def came_to(self: writer.Writer[object], wait: Callable[[float], bool]) -> bool:
        def some_calls(_: float) -> bool:
            nonlocal waits
            waits += 1
            goal = len(system.calls) + CALLS_IN_A_WAIT
            may_call.release(CALLS_IN_A_WAIT)
            wait_for(lambda: wait(0) or len(system.calls) >= goal, "calls of the writer, or its end")
            return wait(0)

        return came(self, some_calls)

    def by_permission(call: str, name: str) -> None:
        if threading.current_thread().name == writer.THREAD_NAME:
            may_call.acquire()

    monkeypatch.setattr(writer.Writer, "_came", came_to)
    with player.open_toy(run_dir, 12, disk=disk) as run:
        system.gate = by_permission
        player.play(run)

    assert waits > 10
    assert run.failure is None
    assert player.verified(run_dir).acknowledged == 12


def test_disk_that_hangs_does_not_hang_the_exit(
    run_dir: Path, system: FaultySystem, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "WRITER_STALL_S_MAX", 0.05)
    forever = threading.Event()
    run = player.open_toy(run_dir, 1, disk=disk)
    system.gate = lambda call, name: forever.wait(LIMIT_S)
    run.event("EVENT_X", {})

    with pytest.raises(StoreError, match="did nothing"):
        run.close()
    forever.set()
    join_writer()
