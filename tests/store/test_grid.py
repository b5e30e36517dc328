"""What is kept of a grid as a whole: what was asked for when, and what its sessions used up."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mac_runner.clock import SystemClock
from mac_runner.errors import RunDirectoryError, RunLockedError
from mac_runner.store import (
    GridRecord,
    grid_accounting,
    grid_entries,
    is_grid,
    open_grid,
    read_grid,
    read_run,
    write_tables,
)
from mac_runner.types import JsonObject

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
    with open_grid(tmp_path / "g", asked=replace(asked(), entries=entries), clock=CLOCK) as grid_run:
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
    accounting = grid_accounting(tmp_path, "g")

    assert accounting["models"] == {"m": {"busy_slot_s": 3.5, "capacity": 4, "requests": 5}}
    assert isinstance(accounting["sessions"], dict)
    assert list(accounting["sessions"]) == ["1", "2", "3"]
    lines = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert [line["event"] for line in lines] == ["EVENT_RUN_START"] * 3


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with open_grid(tmp_path, asked=asked("a"), clock=CLOCK):
        with pytest.raises(RunLockedError):
            open_grid(tmp_path, asked=asked("a"), clock=CLOCK)
        with pytest.raises(RunLockedError):
            write_tables(tmp_path, {"grid.csv": b"new"}, clock=CLOCK)
    open_grid(tmp_path, asked=asked("a"), clock=CLOCK).close()


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
