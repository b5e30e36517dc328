"""How runs, lanes and grids stand, and what they used up over their sessions, also where clocks leap."""

from __future__ import annotations

import json
import os
import re
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from random import Random

import pytest
from msgspec import structs
from syrupy.assertion import SnapshotAssertion

from mac_runner.clock import SystemClock
from mac_runner.errors import RunDirectoryError, RunLockedError, StoreError
from mac_runner.fleet.testing import LaneState
from mac_runner.plan import Shard
from mac_runner.reports import lanes_json, status_json, status_text
from mac_runner.results import section
from mac_runner.store import (
    Disk,
    GridRecord,
    LeasesRecord,
    Need,
    grid_entries,
    grid_usage,
    is_grid,
    open_grid,
    read_grid,
    read_run,
    read_standing,
    used_in,
    write_tables,
)
from mac_runner.store.testing import (
    LEASE_INTERVAL_S,
    STATES,
    Holder,
    JournalTail,
    LaneEvent,
    LaneRecord,
    Layout,
    checkpoint_frame,
    encode_leases,
    lanes_of,
    locked,
    objects,
    open_worker,
    read_lanes,
    session_frame,
)
from mac_runner.store.testing import stretches as stretches_of
from mac_runner.structs import convert
from mac_runner.types import JsonObject
from tests.store import player
from tests.store.conftest import StillClock, edit_journal, lose_frames, tree


def test_run_at_work_is_told_by_its_counts_and_its_owner(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 10, clock=clock) as run:
        player.play(run, turns=2 * player.TURNS + 1)
        run.checkpoint({"models": {"m": {"requests": 9, "capacity": 4}}})
        run.contents()
        standing = read_standing(run_dir)

    assert (standing.planned, standing.finished, standing.failed, standing.half_done) == (10, 2, 0, 1)
    assert standing.holder.owner is not None
    assert standing.holder.owner.pid == os.getpid()
    assert standing.holder.is_alive is True
    assert standing.holder.last_sign_of_life == standing.holder.owner.started_at
    assert standing.latest is not None
    assert (standing.latest.ended, standing.latest.turns_ended) == (2, 2 * player.TURNS)
    tokens = {"prompt": 27, "cached": 9, "completion": 18}
    assert standing.usage["models"] == {"m": {"requests": 9, "capacity": 4, "tokens": tokens}}


def test_owner_that_was_killed_is_told_as_gone(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1):
        note = (run_dir / ".owner.json").read_bytes()
    (run_dir / ".owner.json").write_text(json.dumps({**json.loads(note), "process_start": "1"}))

    standing = read_standing(run_dir)

    assert standing.holder.owner is not None
    assert standing.holder.is_alive is False
    texts = [status_text(status_json(replace(standing, finished=ended), CLOCK.utc_now())) for ended in (0, 1)]
    assert ["at work" in text for text in texts] == [True, False]


def test_failures_and_what_was_tried_again_are_told_as_they_stand(run_dir: Path) -> None:
    player.played(run_dir, 3, failing={"toy_00000", "toy_00001", "toy_00002"}, until=0)
    with player.begun(player.open_toy(run_dir, 1, is_retried="toy_00000".__eq__)) as run:
        during = read_standing(run_dir)
        player.play(run)
    after = read_standing(run_dir)

    assert (during.finished, during.failed, during.sessions) == (0, 2, 2)
    assert (after.finished, after.failed) == (1, 2)
    assert [row["task_id"] for row in after.failures] == ["toy_00001", "toy_00002"]


def test_looking_changes_nothing_takes_no_lock_and_reads_no_transcript(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 2, clock=clock) as run:
        player.play(run)
        run.contents()
        before = tree(run_dir)
        read_standing(run_dir)
        assert tree(run_dir) == before
    for path in (run_dir / "transcripts").iterdir():
        path.write_bytes(b"not looked at")

    standing = read_standing(run_dir)
    assert standing.holder == Holder()
    assert standing.ended == standing.planned == standing.finished == 2


def test_process_that_has_the_whole_run_is_told_and_not_a_worker_that_waits_for_it(
    run_dir: Path, clock: StillClock
) -> None:
    record = LeasesRecord(of=4, experiment_name=player.NAME, identity="of these", conversations=4)
    with player.begun(player.open_toy(run_dir, 4, clock=clock)):
        whole = read_standing(run_dir).holder
        (run_dir / "leases.json").write_bytes(encode_leases(record))
        clock.now_s += 60
        with open_worker(run_dir, clock=clock):
            assert read_standing(run_dir).holder == whole


def test_shard_is_told(run_dir: Path) -> None:
    player.open_toy(run_dir, 1, shard=Shard(1, 4)).close()

    assert read_standing(run_dir).shard == Shard(1, 4)


def event(kind: str, lane: str, **more: str) -> JsonObject:
    return {"time": "T", "event": f"EVENT_LANE_{kind}", "lane": lane, "model": "m", "place": "gpu 0", **more}


def lanes_after(events: list[JsonObject]) -> tuple[LaneRecord, ...]:
    return lanes_of(convert(each, LaneEvent) for each in events)


def happened(*told: str) -> list[JsonObject]:
    """Events of lanes, each told as `KIND lane` or `KIND lane: reason`."""
    parts = (re.fullmatch(r"(\w+) (\S+?)(?:: (.+))?", one) for one in told)
    return [event(part[1], part[2], **({"reason": part[3]} if part[3] else {})) for part in parts if part]


def test_a_lane_is_what_its_latest_event_made_of_it_and_its_deaths_are_counted() -> None:
    found = lanes_after(
        happened(
            *("START m@0", "START m@1", "UP m@0", "UP m@1", "DEAD m@0: killed by signal 9"),
            *("RESTART m@0", "UP m@0", "DEAD m@0: killed by signal 11"),
        )
    )

    still = LaneRecord(name="m@1", model="m", place="gpu 0", state="up", at="T")
    assert found == (
        replace(still, name="m@0", state="resting", deaths=2, restarts=1, reason="killed by signal 11"),
        still,
    )
    assert set(STATES.values()) | {"asleep"} <= set(LaneState)


TURN = {**event("DRAIN", "m@0", reason="n@0 takes its turn"), "next": "n@0"}
COURSES = {
    "turns are taken": ([*happened("UP m@0"), TURN, *happened("SWAP n@0")], "m@0 asleep, n@0 up"),
    "drained by hand": (happened("START m@0", "UP m@1", "DRAIN m@0: a person drains it"), "m@0 draining, m@1 up"),
    "drained and started": (
        happened("START m@0", "UP m@1", "DRAIN m@0: a person drains it", "START m@0"),
        "m@0 starting, m@1 up",
    ),
    "of an earlier session": (happened("START m@0", "START m@1", "DEAD m@1", "START m@0", "UP m@0"), "m@0 up"),
}


@pytest.mark.parametrize("course", COURSES)
def test_lanes_take_turns_are_drained_start_again_and_are_forgotten_with_their_session(course: str) -> None:
    events, expected = COURSES[course]

    assert ", ".join(f"{lane.name} {lane.state}" for lane in lanes_after(events)) == expected


def test_a_log_is_read_past_other_events_and_lines_that_were_cut_short(tmp_path: Path) -> None:
    other = {"time": "T", "event": "EVENT_INFER_START", "lane": "m@7", "text": 'x"event":"EVENT_LANE_UP'}
    lines = [other, event("START", "m@0"), *[other] * 20_000, event("UP", "m@0"), other]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (tmp_path / "events.jsonl").write_text(f'{text}\n{{"time":"T","event":"EVENT_LANE_UP","la\n')
    assert [(lane.name, lane.state) for lane in read_lanes(tmp_path)] == [("m@0", "up")]

    (tmp_path / "events.jsonl").write_text("\n".join(json.dumps(other, separators=(",", ":")) for _ in range(20_000)))
    assert read_lanes(tmp_path) == ()
    (tmp_path / "events.jsonl").unlink()
    assert read_lanes(tmp_path) == ()


def test_status_names_the_lanes_that_are_not_up_and_hides_most_of_many() -> None:
    lanes = lanes_after(happened("UP m@0", *(f"DEAD m@{number}: out of memory" for number in range(1, 12))))
    status: JsonObject = {
        **dict.fromkeys(("shard", "owner", "session", "limit", "eta_s", "wall_s", "played_s", "warning")),
        "experiment_name": "x",
        "state": "running",
        "conversations": dict.fromkeys(("planned", "finished", "failed", "half_done", "not_begun"), 0),
        "sessions": 1,
        "models": {},
        "failures": [],
        "lanes": lanes_json(lanes),
    }
    text = status_text(status)

    assert " 1 of 12 up " in text
    assert "; out of memory\n" in text
    assert "and 3 more lanes\n" in text
    assert "m@0" not in text


def test_each_part_of_an_extended_run_tells_when_it_came(run_dir: Path, clock: StillClock) -> None:
    for n in (2, 2, 5):
        player.played(run_dir, n, clock=clock)
        clock.now_s += 60

    assert read_run(run_dir).accounting["parts"] == [
        {
            "session": session,
            "started_at": f"2025-01-01T00:0{minute}:00.000Z",
            "finished": n,
            "failed": 0,
            "indexes": [at],
        }
        for session, minute, n, at in ((1, 0, 2, [0, 1, 1]), (3, 2, 3, [2, 4, 1]))
    ]


def test_accounting_is_added_up_over_sessions(run_dir: Path, clock: StillClock) -> None:
    for capacity in (4, 8):
        with player.open_toy(run_dir, 2, clock=clock) as run:
            run.checkpoint({"models": {"m": {"capacity": 1, "busy_slot_s": 99.0}}})
            clock.now_s += 10
            run.checkpoint({"models": {"m": {"capacity": capacity, "busy_slot_s": 1.5}}})
            clock.now_s += 5

    models: JsonObject = {"m": {"capacity": 8, "busy_slot_s": 3.0}}
    found = read_run(run_dir).accounting
    assert found == {"wall_s": 30.0, "played_s": 0.0, "sessions": 2, "models": models, "merged_runs": 0, "parts": []}


def test_account_that_was_summed_up_stands(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 2, clock=clock) as run:
        player.play(run)
        clock.now_s += 8.0
        run.checkpoint({"models": {}})
        contents = run.contents()
        run.write_summary({"wall_s": contents.accounting["wall_s"]})
        clock.now_s += 4.0

    assert contents.accounting["wall_s"] == 8.0
    assert read_run(run_dir).accounting == contents.accounting


def test_what_a_session_without_a_checkpoint_ended_is_untimed(run_dir: Path, clock: StillClock) -> None:
    player.played(run_dir, 2, clock=clock)
    lose_frames(run_dir, b"checkpoint")
    with player.open_toy(run_dir, 5, clock=clock) as run:
        player.play(run)
        clock.now_s += 10

    told = read_run(run_dir).accounting
    assert told["wall_s"] == 10.0
    assert told["untimed"] == {"conversations": 2, "requests": 2 * player.TURNS}


def test_time_before_the_engines_were_up_is_not_played(run_dir: Path, clock: StillClock) -> None:
    for _ in range(2):
        with player.open_toy(run_dir, 1, clock=clock) as run:
            clock.now_s += 100
            run.checkpoint({"played_s": 0.0})
            clock.now_s += 7
            run.checkpoint({"played_s": 7.0})
            run.write_summary({})

    told = read_run(run_dir).accounting
    assert (told["wall_s"], told["played_s"]) == (214.0, 14.0)


def test_a_session_whose_engines_never_came_up_has_played_nothing(run_dir: Path, clock: StillClock) -> None:
    with player.open_toy(run_dir, 1, clock=clock):
        clock.now_s += 100

    told = read_run(run_dir).accounting
    assert (told["wall_s"], told["played_s"]) == (100.0, 0.0)


def test_failed_conversations_are_told_apart(run_dir: Path) -> None:
    parts = objects(read_run(player.played(run_dir, 3, failing={"toy_00001"})).accounting, "parts")
    assert [(part["finished"], part["failed"]) for part in parts] == [(2, 1)]


@pytest.mark.parametrize(
    ("indexes", "stretches"),
    [
        ([], []),
        ([3], [[3, 3, 1]]),
        ([0, 1, 2, 7, 11, 15], [[0, 2, 1], [7, 15, 4]]),
        ([0, 5], [[0, 0, 1], [5, 5, 1]]),
        ([0, 5, 6, 7], [[0, 0, 1], [5, 7, 1]]),
        ([1, 4, 7, 10], [[1, 10, 3]]),
    ],
)
def test_indexes_are_told_in_short(indexes: list[int], stretches: list[list[int]]) -> None:
    assert [[*each] for each in stretches_of(array("q", indexes))] == stretches


HOUR_S, DAY_S = 3600.0, 86_400.0


class LeapingClock:
    """Wall time is what `wall` makes of the number of the question; `leaps` are added to the monotonic time."""

    def __init__(self, wall: Callable[[int], float], leaps: dict[int, float]) -> None:
        self._wall, self._leaps = wall, leaps
        self._asked, self._ticks = count(), count()

    def utc_now(self) -> datetime:
        return datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=self._wall(next(self._asked)))

    def monotonic_s(self) -> float:
        tick = next(self._ticks)  # Two threads ask.
        return 0.001 * tick + sum(leap_s for at, leap_s in self._leaps.items() if at <= tick)

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError("a store does not sleep")


@pytest.mark.parametrize(
    ("wall", "leaps"),
    [
        pytest.param(lambda n: HOUR_S * (n > 9), {}, id="an hour on"),
        pytest.param(lambda n: -HOUR_S * (n > 9), {}, id="an hour back"),
        pytest.param(lambda n: DAY_S * (n > 9), {}, id="a day on"),
        pytest.param(lambda n: -DAY_S * (n > 9), {}, id="a day back"),
        pytest.param(lambda n: -float(n), {}, id="backwards"),
        pytest.param(lambda n: HOUR_S * (-1) ** n, {}, id="strobed"),
        pytest.param(lambda n: float(n), {9: HOUR_S}, id="asleep for an hour"),
    ],
)
def test_leaping_clocks_cost_nothing(run_dir: Path, wall: Callable[[int], float], leaps: dict[int, float]) -> None:
    for n in (4, 8):
        player.played(run_dir, n, clock=LeapingClock(wall, leaps))

    report = player.verified(run_dir)
    assert report.findings == ()
    assert report.acknowledged == 8
    wall_s = read_run(run_dir).accounting["wall_s"]
    assert isinstance(wall_s, float)
    assert 0 < wall_s < 2 * HOUR_S + 60
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
    played = [event["elapsed_s"] for event in events if event["event"] == "EVENT_INFER_DONE"]
    assert len(played) == 8 * player.TURNS
    assert all(elapsed_s >= 0 for elapsed_s in played)
    assert sum(later < earlier for earlier, later in pairwise(played)) <= 1  # The second session begins anew.


def test_leap_brings_one_sign_of_life_and_no_storm(run_dir: Path) -> None:
    with player.open_toy(run_dir, 30, clock=LeapingClock(float, {40: HOUR_S})) as run:
        player.play(run)
        run.contents()
        signs = (run_dir / ".lease").read_bytes().splitlines()

    assert len(signs) <= 2
    assert LEASE_INTERVAL_S < HOUR_S


CLOCK = SystemClock()


def asked(*identities: str) -> GridRecord:
    """A grid of combinations that are called after their identities."""
    return GridRecord(
        name="g",
        profile="embedded",
        asked={"sweep": {"seed": [1, 2]}},
        entries=grid_entries((f"slug-{identity}", identity, {"seed": identity}) for identity in identities),
    )


def played(directory: Path, *identities: str, used: JsonObject | None = None) -> GridRecord:
    """A session that asks for these."""
    with open_grid(directory, asked=asked(*identities), clock=CLOCK) as grid_run:
        grid_run.event("EVENT_RUN_START", {})
        if used is not None:
            grid_run.checkpoint({"models": {"m": used}})
        grid_run.write_tables({"grid.csv": b"a,b\n"})
        return grid_run.record


def test_directory_without_anything_can_begin_a_grid(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()

    assert read_grid(tmp_path) is None
    assert read_grid(tmp_path / "new") is None
    assert not is_grid(tmp_path)


def test_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    values: JsonObject = {"text": "=1\n- {a: b}", "none": None, "list": [1, 2.5, True], "odd": "\x00ü"}
    entries = grid_entries([("slug", "identity", values)])
    with open_grid(tmp_path / "g", asked=structs.replace(asked(), entries=entries), clock=CLOCK) as grid_run:
        record = grid_run.record

    assert read_grid(tmp_path / "g") == record
    assert record.entries[0].values == values


def test_combination_keeps_the_session_that_first_asked_for_it(tmp_path: Path) -> None:
    played(tmp_path, "a", "b")
    played(tmp_path, "b", "c")
    record = played(tmp_path, "b", "c", "a", "d")

    assert [(entry.identity, entry.session) for entry in record.entries] == [("a", 1), ("b", 1), ("c", 2), ("d", 3)]
    assert all(entry.is_asked for entry in record.entries)
    assert [entry.is_asked for entry in played(tmp_path, "d").entries] == [False, False, False, True]


def test_accounts_of_all_sessions_are_added_and_events_are_logged(tmp_path: Path) -> None:
    played(tmp_path, "a", used={"busy_slot_s": 2.0, "capacity": 8, "requests": 3})
    played(tmp_path, "a", used={"busy_slot_s": 1.5, "capacity": 4, "requests": 2})
    played(tmp_path, "a")
    accounting = grid_usage(tmp_path, "g")

    assert accounting["models"] == {"m": {"busy_slot_s": 3.5, "capacity": 4, "requests": 5}}
    assert isinstance(accounting["sessions"], dict)
    assert list(accounting["sessions"]) == ["1", "2", "3"]
    lines = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert [line["event"] for line in lines] == ["EVENT_RUN_START"] * 3


def test_grid_that_is_opened_reads_its_journal_once_for_its_accounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played(tmp_path, "a", used={"requests": 3})
    reads: list[Path] = []

    def chunks(disk: Disk, path: Path, *bounds: int) -> Iterator[bytes]:
        reads.append(path)
        return plain(disk, path, *bounds)

    plain = Disk.chunks
    monkeypatch.setattr(Disk, "chunks", chunks)
    with open_grid(tmp_path, asked=asked("a"), clock=CLOCK):
        assert reads.count(tmp_path / "journal/000001.jsonl") == 1


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_grid(tmp_path, asked=asked("a"), clock=CLOCK):
        with pytest.raises(RunLockedError):
            open_grid(tmp_path, asked=asked("a"), clock=CLOCK)
        with pytest.raises(RunLockedError):
            write_tables(tmp_path, {"grid.csv": b"new"}, clock=CLOCK)
    open_grid(tmp_path, asked=asked("a"), clock=CLOCK).close()


def test_refused_start_of_a_grid_leaves_no_trace(tmp_path: Path) -> None:
    played(tmp_path / "old", "a")
    before = tree(tmp_path)
    for place in (tmp_path / "old", tmp_path / "new" / "place"):
        with pytest.raises(ZeroDivisionError), open_grid(place, asked=asked("a", "b"), clock=CLOCK):
            raise ZeroDivisionError
        with pytest.raises(StoreError, match="missing"):
            open_grid(place, asked=asked("a", "b"), clock=CLOCK, needs=[Need(1 << 40, 1 << 20)])
    assert tree(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_grid_that_was_killed_before_its_record_was_written_goes_on(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()

    open_grid(tmp_path, asked=asked("a"), clock=CLOCK).close()

    record = read_grid(tmp_path)
    assert record is not None
    assert [entry.slug for entry in record.entries] == ["slug-a"]


def test_directory_opened_on_one_thread_and_closed_on_another_is_free(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as other:
        first = other.submit(open_grid, tmp_path, asked=asked("a"), clock=CLOCK).result()
    first.close()

    # `first` is still there, so nothing but its closing has freed the lock.
    open_grid(tmp_path, asked=asked("a"), clock=CLOCK).close()
    first.close()


def test_tables_that_are_right_are_not_touched_and_no_lock_is_taken(tmp_path: Path) -> None:
    played(tmp_path, "a")
    before = (tmp_path / "grid.csv").stat().st_mtime_ns
    with open_grid(tmp_path, asked=asked("a"), clock=CLOCK):
        write_tables(tmp_path, {"grid.csv": b"a,b\n"}, clock=CLOCK)
    assert (tmp_path / "grid.csv").stat().st_mtime_ns == before

    write_tables(tmp_path, {"grid.csv": b"c\n"}, clock=CLOCK)
    assert (tmp_path / "grid.csv").read_bytes() == b"c\n"


def test_tables_are_left_alone_while_a_worker_holds_a_shard(tmp_path: Path) -> None:
    played(tmp_path, "a")
    staged = tmp_path / ".tmp-of-the-worker"
    staged.touch()
    with locked(Disk(), tmp_path / "leases/slug-a/1-of-2"), pytest.raises(RunLockedError):
        write_tables(tmp_path, {"grid.csv": b"c\n"}, clock=CLOCK)
    assert staged.exists()
    assert (tmp_path / "grid.csv").read_bytes() == b"a,b\n"


@pytest.mark.parametrize("name", ["experiment.yaml", "notes.txt"])
def test_directory_that_is_something_else_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    with pytest.raises(RunDirectoryError, match="--out"):
        read_grid(tmp_path)
    with pytest.raises(RunDirectoryError, match="--out"):
        open_grid(tmp_path, asked=asked("a"), clock=CLOCK)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_grid_is_no_run(tmp_path: Path) -> None:
    played(tmp_path, "a")

    with pytest.raises(RunDirectoryError, match="a grid of"):
        read_run(tmp_path)


def test_accounts_of_a_session_killed_anywhere_have_every_reply_that_it_recorded(run_dir: Path) -> None:
    """Whatever the accounts said last, and wherever the kill came."""
    dice = Random(3)
    replies = 0
    with player.open_toy(run_dir, 6) as run:
        for is_ending in player.steps(run):
            replies += not is_ending
            if dice.random() < 0.3:
                accounts: JsonObject = {"capacity": 4, "requests": dice.randint(0, replies)}
                run.checkpoint({"played_s": 0.0, "models": {"m": accounts}})
                run.drain()
    segment = run_dir / "journal/000001.jsonl"
    whole = segment.read_bytes()
    for _ in range(18):
        cut = whole[: dice.randrange(len(whole.splitlines(keepends=True)[0]), len(whole))]
        segment.write_bytes(cut)
        recorded = len(re.findall(rb'"kind":"reply".*\n', cut))
        accounting = read_run(run_dir).accounting

        found = section(section(accounting, "models"), "m")
        assert (found.get("requests", 0), section(found, "tokens").get("prompt", 0)) == (recorded, 3 * recorded)
        assert read_standing(run_dir).usage.get("models", {}) == accounting["models"]
        tail = JournalTail(disk := Disk(), layout := Layout(directory=run_dir, experiment_name=player.NAME))
        tail.read_on()
        tail.state.count_recorded(disk, layout)
        assert tail.state.usage.get("models", {}) == accounting["models"]
        wrong = {finding.text for finding in player.verified(run_dir).findings if "accounts" in finding.text}
        assert wrong == set()


def test_accounts_of_a_grid_killed_anywhere_have_every_reply_of_its_combinations(tmp_path: Path) -> None:
    """Whatever it noted last; and the next session notes what is missing, once."""
    dice = Random(4)
    for trial in range(6):
        path, noted, replies = tmp_path / str(trial), 0, 0
        with open_grid(path, asked=asked("a", "b"), clock=CLOCK) as grid_run:
            tasks = player.shared_plan(4)
            for slug, plan in (("slug-a", tasks[:2]), ("slug-b", tasks[2:])):
                with player.open_toy(path / slug, plan, grid=path, is_guarded=True, engines={"m": "m"}) as run:
                    for is_ending in player.steps(run):
                        replies += not is_ending
                        if dice.random() < 0.2:
                            noted = dice.randint(0, replies)
                            grid_run.checkpoint({"models": {"m": {"requests": noted}}})
                        if dice.random() < 0.2:
                            run.checkpoint({"played_s": 0.0})
                            run.drain()
        for segment in path.glob("journal/slug-*/*.jsonl"):
            whole = segment.read_bytes()
            segment.write_bytes(whole[: dice.randrange(len(whole.splitlines(keepends=True)[0]), len(whole))])
        recorded = sum(
            len(re.findall(rb'"kind":"reply".*\n', segment.read_bytes()))
            for segment in path.glob("journal/slug-*/*.jsonl")
        )

        for usage in (grid_usage(path, "g"), read_standing(path).usage):
            assert section(section(usage, "models"), "m").get("requests", 0) == max(noted, recorded)
        for session in (1, 2):
            with open_grid(path, asked=asked("a", "b"), clock=CLOCK) as grid_run:
                grid_run.checkpoint({"models": {"m": {"requests": 5}}})
            found = grid_usage(path, "g")
            assert section(section(found, "models"), "m")["requests"] == max(noted, recorded) + 5 * session


def test_plan_of_a_combination_grows_with_a_session_whose_first_frame_came_after_a_look(tmp_path: Path) -> None:
    played(tmp_path, "a")
    directory = player.played(tmp_path / "slug-a", player.shared_plan(1), grid=tmp_path, is_guarded=True)
    followed = read_run(directory)
    assert followed.counts == (1, 1, 0)

    second = followed.layout.segment(2)
    second.touch()
    followed.follow()
    assert followed.counts == (1, 1, 0)
    second.write_bytes(session_frame(2, started_at="2026-01-01T00:00:00Z", planned=range(3)))
    followed.follow()

    assert followed.counts == (3, 1, 0)
    assert followed.planned().keys() == followed.tasks


def test_use_of_a_grid_counts_what_a_combination_used_that_was_played_alone_and_each_reply_once(tmp_path: Path) -> None:
    played(tmp_path, "a", used={"requests": 5})
    with player.open_toy(tmp_path / "slug-a", player.shared_plan(2), grid=tmp_path) as alone:
        replies = sum(not is_ending for is_ending in player.steps(alone))
        alone.checkpoint({"played_s": 2.0})

    found = used_in(tmp_path)

    assert replies > 0
    assert section(section(found, "models"), "m")["requests"] == 5 + replies
    assert (found["played_s"], read_standing(tmp_path).usage) == (2.0, found)


def test_sessions_of_a_grid_are_its_own_and_those_of_its_workers(tmp_path: Path) -> None:
    played(tmp_path, "a")
    before = read_standing(tmp_path).sessions
    with open_worker(tmp_path, clock=CLOCK), open_worker(tmp_path, clock=CLOCK):
        assert read_standing(tmp_path).sessions == before + 2

    with open_grid(tmp_path, asked=asked("a"), clock=CLOCK) as grid_run:
        grid_run.checkpoint({})
    assert read_standing(tmp_path).sessions == before + 3


def test_what_a_worker_notes_while_its_grid_is_merged_counts_once(tmp_path: Path) -> None:
    dice = Random(2)
    for trial in range(4):
        path = tmp_path / str(trial)
        played(path, "a")
        with open_worker(path, clock=CLOCK) as worker:
            with player.open_toy(path / "slug-a", player.shared_plan(2), grid=path, engines={"m": "m"}) as run:
                replies = sum(not is_ending for is_ending in player.steps(run))
            worker.checkpoint({"models": {"m": {"requests": dice.randint(0, replies)}}})
            with open_grid(path, asked=asked("a"), clock=CLOCK):
                worker.checkpoint({"models": {"m": {"requests": replies}}})
                worker.close()
            assert section(section(grid_usage(path, "g"), "models"), "m")["requests"] == replies


def test_accounts_that_cannot_be_are_found(run_dir: Path, snapshot: SnapshotAssertion) -> None:
    """Fewer requests than replies, and more play than there was time."""
    player.played(run_dir, 2)
    accounts: JsonObject = {"m": {"requests": 7, "capacity": 4}}

    def altered(data: bytes) -> bytes:
        return data + checkpoint_frame(1, elapsed_s=2.5, accounting={"played_s": 3.5, "models": accounts})

    edit_journal(run_dir, altered)

    assert [finding.text for finding in player.verified(run_dir).findings] == snapshot


def test_each_damaged_line_of_a_journal_is_counted_but_for_those_of_replies(run_dir: Path) -> None:
    """Wherever its altered byte is. A reply that is damaged is asked for again."""
    player.played(run_dir, 2)
    segment, start = run_dir / "journal/000001.jsonl", 0
    whole = segment.read_bytes()
    assert read_standing(run_dir).damaged_lines == 0
    for line in whole.splitlines(keepends=True):
        for place in range(start, start + len(line) - 1, 9) if b'"kind":"reply"' not in line else ():
            segment.write_bytes(whole[:place] + bytes([whole[place] ^ 2]) + whole[place + 1 :])
            assert read_standing(run_dir).damaged_lines == 1, place
            assert read_run(run_dir).state.damaged_lines == 1, place
        start += len(line)
