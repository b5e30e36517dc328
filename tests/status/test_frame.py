from __future__ import annotations

from dataclasses import replace

from mac_runner.scheduler import Accounting, Progress, RequestScheduler, WaitingTurn
from mac_runner.scheduler.testing import Faulted, ModelReady, Opened
from mac_runner.status import TurnRow, read_progress
from mac_runner.status.testing import row
from mac_runner.types import Turn
from tests.sim.recorder import MemoryRecorder
from tests.status.conftest import SimulatedClock

TURN = Turn(round=3, agent="Ann", model="m", place=0)


def test_reading_of_a_run_that_has_not_begun_shows_what_was_there() -> None:
    reading = read_progress(Progress(planned=10, finished=4, failed=1), experiment_name="demo", profile="p")

    assert (reading.planned, reading.ended, reading.resumed_with, reading.written) == (10, 5, 5, 5)
    assert (reading.elapsed_s, reading.turns, reading.models, reading.ready_rows) == (0.0, 0, (), ())


def test_reading_tells_turns_that_back_off_from_those_that_others_block(clock: SimulatedClock) -> None:
    scheduler, accounting = RequestScheduler(), Accounting(started_at_s=0.0, concurrency=None)
    accounting.open("m", 1)
    for event in (
        ModelReady("m", 1),
        Opened(
            0, (TURN, *(replace(TURN, agent=name, place=1, after=frozenset({"Ann"})) for name in ("Bob", "Cid"))), 0
        ),
        Faulted(0, TURN, 9.0),
    ):
        scheduler.handle(event)
    progress = Progress(planned=1)
    progress.attach(scheduler, accounting, MemoryRecorder(), clock, {})

    reading = read_progress(progress, experiment_name="demo", profile="p")

    assert (reading.blocked, reading.backing_off) == (2, 1)
    assert {(row.agent, row.note) for row in reading.pending_rows} == {
        ("Ann", "retry 1"),
        ("Bob", "after Ann"),
        ("Cid", "after Ann"),
    }


def test_row_notes_why_a_turn_waits() -> None:
    for changes, turn, note in (
        ({"sendings": 0}, TURN, ""),
        ({"sendings": 0, "waits_for": ("Bob", "Cid")}, TURN, "after Bob, Cid"),
        ({"sendings": 2, "is_backing_off": True}, TURN, "retry 2"),
        ({"sendings": 0}, replace(TURN, attempt=1), "correction 1"),
        ({"sendings": 0}, replace(TURN, step=1), "goes on"),
    ):
        waiting = WaitingTurn(conversation=0, turn=turn, **changes)
        assert row("task", waiting) == TurnRow(task_id="task", round=3, agent="Ann", model="m", note=note)
