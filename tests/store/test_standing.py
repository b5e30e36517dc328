"""How a run and its lanes stand, seen from outside."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

from mac_runner.fleet.testing import LaneState
from mac_runner.plan import Shard
from mac_runner.reports import lanes_json, status_text
from mac_runner.store import read_standing
from mac_runner.store.testing import STATES, LaneRecord, lanes_of, read_lanes
from mac_runner.types import JsonObject
from tests.store import player
from tests.store.conftest import tree


def test_run_at_work_is_told_by_its_counts_and_its_owner(run_dir: Path) -> None:
    with player.open_toy(run_dir, 10) as run:
        player.play(run, turns=2 * player.TURNS + 1)
        run.checkpoint({"models": {"m": {"requests": 9, "capacity": 4}}})
        run.contents()
        standing = read_standing(run_dir)

    assert (standing.planned, standing.finished, standing.failed, standing.half_done) == (10, 2, 0, 1)
    assert standing.owner is not None
    assert standing.owner.pid == os.getpid()
    assert standing.is_owner_alive is True
    assert standing.last_sign_of_life == standing.owner.started_at
    assert standing.latest is not None
    assert (standing.latest.ended, standing.latest.turns_ended) == (2, 2 * player.TURNS)
    assert standing.usage["models"] == {"m": {"requests": 9, "capacity": 4}}


def test_owner_that_was_killed_is_told_as_gone(run_dir: Path) -> None:
    with player.open_toy(run_dir, 1):
        note = (run_dir / ".owner.json").read_bytes()
    (run_dir / ".owner.json").write_text(json.dumps({**json.loads(note), "process_start": "1"}))

    standing = read_standing(run_dir)

    assert standing.owner is not None
    assert standing.is_owner_alive is False


def test_failures_and_what_was_tried_again_are_told_as_they_stand(run_dir: Path) -> None:
    player.played(run_dir, 3, failing={"toy_00000", "toy_00001", "toy_00002"}, until=0)
    with player.open_toy(run_dir, 1, is_retried="toy_00000".__eq__) as run:
        during = read_standing(run_dir)
        player.play(run)
    after = read_standing(run_dir)

    assert (during.finished, during.failed, during.sessions) == (0, 2, 2)
    assert (after.finished, after.failed) == (1, 2)
    assert [row["task_id"] for row in after.failures] == ["toy_00001", "toy_00002"]


def test_looking_changes_nothing_takes_no_lock_and_reads_no_transcript(run_dir: Path) -> None:
    with player.open_toy(run_dir, 2) as run:
        player.play(run)
        run.contents()
        before = tree(run_dir)
        read_standing(run_dir)
        assert tree(run_dir) == before
    for path in (run_dir / "transcripts").iterdir():
        path.write_bytes(b"not looked at")

    standing = read_standing(run_dir)
    assert (standing.owner, standing.is_owner_alive, standing.last_sign_of_life) == (None, None, None)
    assert standing.ended == standing.planned == standing.finished == 2


def test_shard_is_told(run_dir: Path) -> None:
    player.open_toy(run_dir, 1, shard=Shard(1, 4)).close()

    assert read_standing(run_dir).shard == Shard(1, 4)


def event(kind: str, lane: str, **more: str) -> JsonObject:
    return {"time": "T", "event": f"EVENT_LANE_{kind}", "lane": lane, "model": "m", "place": "gpu 0", **more}


def states(*events: JsonObject) -> dict[str, str]:
    return {lane.name: lane.state for lane in lanes_of(events)}


def test_a_lane_is_what_its_latest_event_made_of_it_and_its_deaths_are_counted() -> None:
    found = lanes_of(
        [
            event("START", "m@0"),
            event("START", "m@1"),
            event("UP", "m@0"),
            event("UP", "m@1"),
            event("DEAD", "m@0", reason="killed by signal 9"),
            event("RESTART", "m@0"),
            event("UP", "m@0"),
            event("DEAD", "m@0", reason="killed by signal 11"),
        ]
    )

    still = LaneRecord(name="m@1", model="m", place="gpu 0", state="up", at="T")
    assert found == (
        replace(still, name="m@0", state="resting", deaths=2, restarts=1, reason="killed by signal 11"),
        still,
    )
    assert set(STATES.values()) | {"asleep"} <= set(LaneState)


def test_lanes_that_take_turns_are_asleep_and_drained_ones_start_again() -> None:
    turn = event("DRAIN", "m@0", reason="n@0 takes its turn", next="n@0")
    assert states(event("UP", "m@0"), turn, event("SWAP", "n@0")) == {"m@0": "asleep", "n@0": "up"}
    by_hand = event("DRAIN", "m@0", reason="a person drains it")
    assert states(event("START", "m@0"), event("UP", "m@1"), by_hand) == {"m@0": "draining", "m@1": "up"}
    assert states(event("START", "m@0"), event("UP", "m@1"), by_hand, event("START", "m@0")) == {
        "m@0": "starting",
        "m@1": "up",
    }


def test_the_lanes_of_an_earlier_session_are_forgotten() -> None:
    assert states(
        event("START", "m@0"), event("START", "m@1"), event("DEAD", "m@1"), event("START", "m@0"), event("UP", "m@0")
    ) == {"m@0": "up"}


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
    lanes = lanes_of(
        [event("UP", "m@0"), *(event("DEAD", f"m@{number}", reason="out of memory") for number in range(1, 12))]
    )
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
