from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from syrupy.assertion import SnapshotAssertion

from mac_runner.plan import Shard
from mac_runner.reports import status_json, status_text, with_shards
from mac_runner.reports.testing import FAILURES_MAX, MODELS_MAX
from mac_runner.store import SessionStanding, ShardsStanding, Standing, Worker
from mac_runner.store.testing import Owner
from mac_runner.types import JsonObject, JsonValue
from tests.kit import index_row

NOW = datetime(2025, 1, 1, 0, 1, tzinfo=UTC)
OWNER = Owner(
    pid=4242,
    host="node17",
    started_at="2025-01-01T00:00:00.000Z",
    command="mac-run demo.yaml",
    machine="0badcafe",
    process_start="1",
)


def standing(
    *,
    finished: int = 40,
    failures: tuple[JsonObject, ...] = (),
    owner: Owner | None = OWNER,
    alive: bool | None = True,
    sign: str | None = "2025-01-01T00:00:57.000Z",
    models: JsonObject | None = None,
) -> Standing:
    """A hundred conversations of ten turns each, at ten turns a second for a minute."""
    account: JsonObject = {
        "requests": 600,
        "faults": 3,
        "tokens": {"prompt": 12_000, "cached": 7_000, "completion": 900},
    }
    usage: JsonObject = {"wall_s": 80.0, "played_s": 60.0, "models": {"m": account} if models is None else models}
    return Standing(
        directory=Path("runs/demo"),
        experiment_name="demo",
        shard=Shard(2, 8),
        planned=100,
        finished=finished,
        failed=len(failures),
        half_done=20,
        failures=failures,
        sessions=2,
        latest=SessionStanding(number=2, started_at="2025-01-01T00:00:00.000Z", ended=40, turns_ended=400, usage=usage),
        usage={**usage, "wall_s": 120.0, "played_s": 90.0},
        owner=owner,
        is_owner_alive=alive,
        last_sign_of_life=sign,
    )


def test_run_at_work_is_told_on_one_screen(snapshot: SnapshotAssertion) -> None:
    failed = (index_row(7, failure="turn 3/Ann/0/0 got no answer: refused"),)

    assert status_text(status_json(standing(finished=39, failures=failed), NOW)) == snapshot


def test_tokens_of_a_model_that_does_not_count_are_not_told_as_none() -> None:
    account: JsonObject = {"requests": 9, "faults": 0, "tokens": {"prompt": 0, "cached": 0, "completion": 0}}

    assert "tokens: not counted" in status_text(status_json(standing(models={"m": account}), NOW))


def test_state_follows_the_owner_and_what_is_left() -> None:
    for owner, alive, finished, state in (
        (OWNER, True, 40, "running"),
        (OWNER, None, 40, "perhaps running"),
        (OWNER, False, 40, "stopped"),
        (None, None, 40, "stopped"),
        (None, None, 100, "complete"),
        (OWNER, False, 100, "complete"),
    ):
        found = status_json(standing(owner=owner, alive=alive, finished=finished), NOW)
        assert found["state"] == state, (owner, alive, finished)


def test_time_left_counts_what_open_conversations_have_behind_them() -> None:
    """Sixty are left at ten turns each, 200 turns of them are played, and ten a second are."""
    assert status_json(standing(), NOW)["eta_s"] == 40.0


def test_pace_and_time_left_of_shards_are_those_of_all_workers_at_work() -> None:
    """Sixty are left at ten turns each, 200 turns of them are played, and two workers make twenty a second."""
    usage: JsonObject = {"played_s": 60.0, "models": {"m": {"requests": 600, "faults": 3}}}
    alone = replace(standing(), counts={"turns": 400})

    def told(*lives: bool | None) -> JsonObject:
        workers = tuple(
            Worker(name=str(n), owner=OWNER, is_alive=alive, last_sign_of_life=None, usage=usage)
            for n, alive in enumerate(lives)
        )
        shards = ShardsStanding(of=8, complete=0, held=2, half_done=0, workers=workers)
        return with_shards(status_json(alone, NOW), alone, shards, NOW)

    assert told(True, True, False)["eta_s"] == 20.0
    assert "20.00 turns/s of all" in status_text(told(True, True, False))
    assert told(False)["eta_s"] is None
    assert "pace" not in status_text(told(False))


def test_nothing_is_promised_where_nobody_works() -> None:
    assert status_json(standing(alive=False), NOW)["eta_s"] is None


def test_sign_of_life_is_an_age_that_is_never_negative_or_unknown() -> None:
    for sign, age in (
        *((sign, "unknown") for sign in (None, "", "yesterday", "2025-01-01")),
        ("2025-01-02T00:00:00.000Z", "0:00:00 ago"),
    ):
        assert f" of life {age}" in status_text(status_json(standing(sign=sign), NOW)), sign


def test_pace_of_a_session_that_noted_nothing_yet_is_not_made_up() -> None:
    told = status_json(standing(), NOW)
    session = told["session"]
    assert isinstance(session, dict)

    text = status_text({**told, "session": {**session, "played_s": None, "turns": 0}})

    assert "40 conversations; its time" in text


def test_screen_is_bounded() -> None:
    models: dict[str, JsonValue] = {f"m{n}": {"requests": n} for n in range(MODELS_MAX + 2)}
    failures = tuple(index_row(n, failure=f"reason {'x' * n}") for n in range(FAILURES_MAX + 3))

    text = status_text(status_json(standing(models=models, failures=failures), NOW))

    assert "and 2 more models" in text
    assert "and 3 more reasons" in text
    assert len(text.splitlines()) <= 24


def test_names_that_would_act_on_a_terminal_are_shown_as_text() -> None:
    told = status_json(standing(), NOW)
    text = status_text({**told, "experiment_name": "\x1b[2Jdemo"})

    assert "\x1b" not in text
