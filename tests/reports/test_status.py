from __future__ import annotations

import io
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.plan import Shard
from mac_runner.reports import fitted, status_json, status_text
from mac_runner.reports.testing import FAILURES_MAX, MODELS_MAX
from mac_runner.store import Combination, SessionStanding, ShardsStanding, Standing, Worker
from mac_runner.store.testing import Holder, Owner
from mac_runner.types import JsonObject, JsonValue
from tests.kit import index_row

NOW = datetime(2025, 1, 1, 0, 1, tzinfo=UTC)
BEGAN = "2025-01-01T00:00:00.000Z"
OWNER = Owner(
    pid=4242, host="node17", started_at=BEGAN, command="mac-run demo.yaml", machine="0badcafe", process_start="1"
)
HOLDER = Holder(owner=OWNER, is_alive=True, last_sign_of_life="2025-01-01T00:00:57.000Z")


def standing(*, failures: tuple[JsonObject, ...] = (), models: JsonObject | None = None, **changes: Any) -> Standing:
    """A hundred conversations of ten turns each, at ten turns a second for a minute."""
    tokens: JsonObject = {"prompt": 12_000, "cached": 7_000, "completion": 900}
    account: JsonObject = {"requests": 600, "faults": 3, "tokens": tokens}
    usage: JsonObject = {"wall_s": 80.0, "played_s": 60.0, "models": {"m": account} if models is None else models}
    found = Standing(
        directory=Path("runs/demo"),
        experiment_name="demo",
        shard=Shard(2, 8),
        planned=100,
        finished=40,
        failed=len(failures),
        half_done=20,
        failures=failures,
        sessions=2,
        latest=SessionStanding(number=2, started_at=BEGAN, ended=40, turns_ended=400, usage=usage),
        usage={**usage, "wall_s": 120.0, "played_s": 90.0},
        holder=HOLDER,
    )
    return replace(found, **changes)


def test_run_at_work_is_told_on_one_screen(snapshot: SnapshotAssertion) -> None:
    failed = (index_row(7, failure="turn 3/Ann/0/0 got no answer: refused"),)

    assert status_text(status_json(standing(finished=39, failures=failed), NOW)) == snapshot


def test_a_terminal_breaks_no_word_of_a_status_and_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = status_text(status_json(standing(), NOW))
    monkeypatch.setattr(os, "get_terminal_size", lambda _descriptor: os.terminal_size((60, 24)))
    narrow = fitted(whole, Terminal())

    assert fitted(whole, io.StringIO()) == whole
    assert narrow.split() == whole.split()
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, whole.splitlines()))
    assert all(line[16] != " " for line in narrow.splitlines())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


def test_state_follows_the_owner_and_what_is_left() -> None:
    for owner, alive, finished, state in (
        (OWNER, True, 40, "running"),
        (OWNER, None, 40, "perhaps running"),
        (OWNER, False, 40, "stopped"),
        (None, None, 40, "stopped"),
        (None, None, 100, "complete"),
        (OWNER, False, 100, "complete"),
    ):
        holder = Holder(owner=owner, is_alive=alive)
        assert told(holder=holder, finished=finished)["state"] == state, (holder, finished)
    lost = tuple(index_row(number, failure="refused") for number in range(100))
    assert told(holder=Holder(), finished=0, failures=lost)["state"] == "failed"


def told(**changes: Any) -> dict[str, Any]:
    """What is said of this run, changed so."""
    return status_json(standing(**changes), NOW)


def test_time_left_counts_what_open_conversations_have_behind_them() -> None:
    """Sixty are left at ten turns each, 200 turns of them are played, and ten a second are, where somebody works."""
    assert told()["eta_s"] == 40.0
    assert told(holder=replace(HOLDER, is_alive=False))["eta_s"] is None


def test_a_combination_whose_engines_are_the_grids_counts_the_turns_of_what_ended() -> None:
    session = told(models={})["session"]

    assert (session["turns"], session["turns_per_s"]) == (400, round(400 / 60, 4))
    assert told()["session"]["turns"] == 600


USED: JsonObject = {"played_s": 60.0, "models": {"m": {"requests": 600, "faults": 3}}}


def worker(holder: Holder = HOLDER, *holds: str) -> Worker:
    """A worker that has claimed these shards."""
    return Worker(name="node17", holder=holder, holds=tuple(map(Path, holds)), usage=USED)


def with_workers(*workers: Worker, **changes: Any) -> dict[str, Any]:
    """What is said of this run while these are its workers."""
    shards = ShardsStanding(of=8, complete=3, held=2, half_done=1, workers=workers)
    return told(counts={"turns": 400}, shard=None, shards=shards, **changes)


def test_pace_and_time_left_of_shards_are_those_of_all_workers_at_work() -> None:
    """Sixty are left at ten turns each, 200 turns of them are played, and two workers make twenty a second."""
    dead = replace(HOLDER, is_alive=False)
    gone, first, second = worker(dead, "4-of-8"), worker(HOLDER, "1-of-8"), worker(HOLDER, "2-of-8")

    assert with_workers(first, second, worker(), gone)["eta_s"] == 20.0
    assert "20.00 turns/s of all" in status_text(with_workers(first, second, worker(), gone))
    assert with_workers(gone, holder=dead)["eta_s"] is None
    assert "pace" not in status_text(with_workers(gone, holder=dead))


def test_time_left_of_a_grid_is_told_while_workers_say_its_pace_and_all_of_it_is_counted() -> None:
    shards = ShardsStanding(
        of=8, complete=3, held=2, half_done=1, workers=(worker(HOLDER, "1-of-8"), worker(HOLDER, "2-of-8"))
    )
    whole = standing(counts={"turns": 400}, shards=shards)
    first, second = (Combination(f"seed-{seed}", {"seed": seed}, None) for seed in (1, 2))

    def to_go(whole: Standing, *others: Combination) -> str:
        status = status_json(replace(whole, combinations=(first._replace(standing=whole), *others)), NOW)
        return next(line for line in status_text(status).splitlines() if line.startswith("to go ")).split()[-1]

    assert to_go(whole) == "0:00:20"
    assert to_go(whole, second) == "unknown"
    assert to_go(replace(whole, shards=None)) == "unknown"


def test_run_that_workers_play_says_who_holds_which_shard_and_who_waits(snapshot: SnapshotAssertion) -> None:
    killed = Holder(owner=replace(OWNER, pid=4243), is_alive=False, last_sign_of_life=BEGAN)
    waiting = replace(HOLDER, owner=replace(OWNER, pid=4244))
    workers = (worker(HOLDER, "1-of-8", "2-of-8"), worker(killed, "4-of-8"), worker(waiting), worker(Holder()))

    assert status_text(with_workers(*workers)) == snapshot


def test_process_that_has_the_whole_run_is_told_beside_a_worker_that_waits_for_it() -> None:
    whole = replace(HOLDER, owner=replace(OWNER, pid=4245))

    status = with_workers(worker(), holder=whole)
    lines = status_text(status).splitlines()

    assert status["eta_s"] == told()["eta_s"]
    assert next(line for line in lines if "pid 4245" in line).startswith("at work")
    assert sum("pid 4242" in line for line in lines) == 1
    assert "mac-run demo.yaml" not in status_text(with_workers(worker(HOLDER, "1-of-8")))


def test_session_that_ended_a_run_of_workers_and_played_nothing_is_not_told() -> None:
    latest = SessionStanding(number=3, started_at=BEGAN)

    texts = [status_text(told(latest=latest, holder=Holder(), finished=finished)) for finished in (40, 100)]
    assert ["last session" in text for text in texts] == [True, False]


def test_what_is_not_known_is_not_made_up() -> None:
    tokens: JsonObject = {"prompt": 0, "cached": 0, "completion": 0}
    silent: JsonObject = {"m": {"requests": 9, "faults": 0, "tokens": tokens}}
    session = {**told()["session"], "played_s": None, "turns": 0}
    ages = [(sign, "unknown") for sign in (None, "", "yesterday", "2025-01-01")]
    for found, words in (
        (told(models=silent), "tokens: not counted"),
        (told() | {"session": session}, "40 conversations; its time"),
        # An age is never negative.
        *(
            (told(holder=replace(HOLDER, last_sign_of_life=sign)), f" of life {age}")
            for sign, age in [*ages, ("2025-01-02T00:00:00.000Z", "0:00:00 ago")]
        ),
    ):
        assert words in status_text(found)


def test_screen_is_bounded_and_names_that_would_act_on_a_terminal_are_shown_as_text() -> None:
    models: dict[str, JsonValue] = {f"m{n}": {"requests": n} for n in range(MODELS_MAX + 2)}
    failures = tuple(index_row(n, failure=f"reason {'x' * n}") for n in range(FAILURES_MAX + 3))

    text = status_text(told(models=models, failures=failures))

    assert "and 2 more models" in text
    assert "and 3 more reasons" in text
    assert len(text.splitlines()) <= 24
    assert "\x1b" not in status_text(told() | {"experiment_name": "\x1b[2Jdemo"})
