"""The lanes of a fleet, from the events of a run."""

from __future__ import annotations

import json
from pathlib import Path

from mac_runner.fleet.testing import LaneState
from mac_runner.reports import lanes_json, status_text
from mac_runner.store.testing import STATES, LaneRecord, lanes_of, read_lanes
from mac_runner.types import JsonObject


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

    assert found == (
        LaneRecord(
            name="m@0", model="m", place="gpu 0", state="resting", at="T", deaths=2, restarts=1,
            reason="killed by signal 11",
        ),
        LaneRecord(name="m@1", model="m", place="gpu 0", state="up", at="T"),
    )  # fmt: skip


def test_lanes_that_take_turns_are_asleep_and_drained_ones_start_again() -> None:
    turn = event("DRAIN", "m@0", reason="n@0 takes its turn", next="n@0")
    assert states(event("UP", "m@0"), turn, event("SWAP", "n@0")) == {"m@0": "asleep", "n@0": "up"}
    by_hand = event("DRAIN", "m@0", reason="a person drains it")
    assert states(event("START", "m@0"), event("UP", "m@1"), by_hand) == {"m@0": "draining", "m@1": "up"}
    assert states(event("START", "m@0"), event("UP", "m@1"), by_hand, event("START", "m@0")) == {
        "m@0": "starting",
        "m@1": "up",
    }


def test_states_are_named_as_the_fleet_names_them() -> None:
    assert set(STATES.values()) | {"asleep"} <= set(LaneState)


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
