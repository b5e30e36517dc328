from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from mac_runner.errors import RunDirectoryError
from mac_runner.intervals import wilson
from mac_runner.reports import summarise
from mac_runner.reports.failures import REASONS_MAX
from mac_runner.types import JsonObject, JsonValue

Make = Callable[..., JsonObject]

ACCOUNTING: JsonObject = {
    "wall_s": 122.0,
    "played_s": 20.0,
    "sessions": 2,
    "models": {"m1": {"capacity": 8, "played_s": 20.0, "busy_slot_s": 30.0, "available_slot_s": 40.0, "requests": 12}},
}


def _summarise(rows: list[JsonObject], planned: int = 10, accounting: JsonObject = ACCOUNTING) -> JsonObject:
    return summarise(experiment_name="demo", rows=rows, planned=planned, accounting=accounting)


def _at(summary: JsonObject, *path: str) -> JsonValue:
    value: JsonValue = summary
    for key in path:
        assert isinstance(value, dict)
        value = value[key]
    return value


def test_summary_adds_up_every_row(make_row: Make) -> None:
    summary = _summarise([make_row(0), make_row(1), make_row(2, failure="boom")], planned=4)

    assert summary["conversations"] == {"planned": 4, "finished": 2, "failed": 1}
    assert (summary["turns"], summary["corrections"], summary["defaults"]) == (30, 6, 3)
    assert summary["tokens"] == {"prompt": 300, "completion": 60, "timing": {"cached": 150}}
    assert (summary["turns_per_s"], summary["conversations_per_s"]) == (0.6, 0.15)
    assert summary["models"] == {"m1": {"capacity": 8, "slots_mean": 2.0, "slot_utilisation": 0.75, "requests": 12}}


def test_turns_and_models_without_a_count_of_tokens_are_told(make_row: Make) -> None:
    rows = [make_row(index) for index in range(3)]
    counts = rows[1]["counts"]
    assert isinstance(counts, dict)
    counts["tokens"] = {"prompt": 0, "cached": 0, "completion": 0}
    none: JsonObject = {"requests": 5, "tokens": {"prompt": 0, "cached": 0, "completion": 0}}
    models: JsonObject = {"silent": none, "idle": {**none, "requests": 0}, "old": {"requests": 5}}

    assert _summarise(rows, accounting={"models": models})["tokens"] == {
        "prompt": 200,
        "completion": 40,
        "timing": {"cached": 100},
        "uncounted_turns": 10,
        "uncounted_models": ["silent"],
    }


def test_rates_are_over_the_time_that_was_played(make_row: Make) -> None:
    summary = _summarise([make_row(index) for index in range(4)])

    assert (summary["wall_s"], summary["played_s"]) == (122.0, 20.0)
    assert (summary["turns_per_s"], summary["conversations_per_s"]) == (0.6, 0.2)


def test_unusable_replies_are_added_up_by_agent_and_cause(make_row: Make) -> None:
    rows = [make_row(index) for index in range(3)]
    counted: list[JsonValue] = [{"ann": {"illegal": 2}}, {"ann": {"cut_off_thought": 1, "illegal": 1}, "bob": {"x": 1}}]
    for row, unusable in zip(rows, counted, strict=False):
        counts = row["counts"]
        assert isinstance(counts, dict)
        counts["unusable"] = unusable
    summary = _summarise(rows)

    assert summary["unusable"] == {"ann": {"cut_off_thought": 1, "illegal": 3}, "bob": {"x": 1}}


@pytest.mark.parametrize("unusable", [[], {"ann": 3}, {"ann": {"illegal": "many"}}])
def test_a_damaged_count_of_unusable_replies_is_refused_by_name(make_row: Make, unusable: JsonValue) -> None:
    row = make_row(7)
    counts = row["counts"]
    assert isinstance(counts, dict)
    counts["unusable"] = unusable
    with pytest.raises(RunDirectoryError, match="the index row of"):
        _summarise([row])


def test_rates_leave_out_what_was_ended_untimed(make_row: Make) -> None:
    summary = _summarise(
        [make_row(index) for index in range(3)],
        accounting={**ACCOUNTING, "untimed": {"conversations": 1, "turns": 10}},
    )

    assert (summary["turns"], summary["turns_per_s"], summary["conversations_per_s"]) == (30, 0.6, 0.1)


def test_summary_of_nothing_has_null_rates_and_no_wins() -> None:
    summary = _summarise([], accounting={"wall_s": 0, "played_s": 0, "sessions": 0, "models": {}})

    assert (summary["turns_per_s"], summary["conversations_per_s"]) == (None, None)
    assert "wins" not in summary
    assert "games" not in summary


def test_summary_counts_a_model_without_slot_seconds_as_unknown() -> None:
    account: JsonObject = {"capacity": 8, "busy_slot_s": 0.0, "available_slot_s": 0.0, "requests": 0}
    summary = _summarise([], accounting={"wall_s": 1, "played_s": 1, "models": {"m1": account}})

    assert _at(summary, "models", "m1", "slot_utilisation") is None


def test_wins_count_a_faction_once_per_game_and_a_role_once_per_player(make_row: Make, make_player: Make) -> None:
    def players(town_won: bool) -> list[JsonObject]:
        town = [make_player(role, "town", won=town_won) for role in ("doctor", "doctor", "sheriff")]
        return [*town, make_player("godfather", "mafia", won=not town_won)]

    rows = [make_row(i, players=players(True), winners=("town",)) for i in range(3)]
    rows.append(make_row(3, players=players(False), winners=("mafia",)))
    summary = _summarise(rows)
    interval = wilson(3, 4)

    assert interval is not None
    assert _at(summary, "wins", "by_faction", "town") == {
        "n": 4,
        "games": 4,
        "wins": 3,
        "rate": 0.75,
        "interval": [round(interval.lo, 4), round(interval.hi, 4)],
    }
    assert _at(summary, "wins", "by_faction", "mafia", "wins") == 1
    assert _at(summary, "wins", "by_role", "doctor", "n") == 8
    assert _at(summary, "wins", "by_role", "doctor", "games") == 4
    assert _at(summary, "wins", "by_role", "doctor", "wins") == 6
    assert _at(summary, "wins", "by_model", "m1", "n") == 16


def test_wins_leave_out_games_a_faction_was_not_part_of(make_row: Make, make_player: Make) -> None:
    town = make_player("doctor", "town", won=True)
    rows = [
        make_row(0, players=[town], winners=("town",)),
        make_row(1, players=[town, make_player("vampire", "vampire", won=False)], winners=("town",)),
    ]

    assert _at(_summarise(rows), "wins", "by_faction", "vampire", "n") == 1


def test_wins_of_a_lone_neutral_count_for_its_faction(make_row: Make, make_player: Make) -> None:
    """A jester wins by its own goal while another group is named the winner."""
    players = [make_player("jester", "neutral", won=True), make_player("doctor", "town", won=True)]
    factions = _at(_summarise([make_row(0, players=players, winners=("town",))]), "wins", "by_faction")

    assert isinstance(factions, dict)
    assert list(factions) == ["neutral", "town"]
    assert _at(factions, "neutral", "wins") == 1


def test_wins_of_a_group_named_after_its_role_count_every_game_it_was_dealt(make_row: Make, make_player: Make) -> None:
    """Also the games it lost before it won for the first time."""
    lost = [make_player("arsonist", "neutral", won=False), make_player("doctor", "town", won=True)]
    won = [make_player("arsonist", "neutral", won=True), make_player("doctor", "town", won=False)]
    rows = [make_row(0, players=lost, winners=("town",)), make_row(1, players=won, winners=("arsonist",))]
    summary = _summarise(rows)

    assert _at(summary, "wins", "by_faction", "arsonist", "n") == 2
    assert _at(summary, "wins", "by_faction", "arsonist", "wins") == 1


def test_games_tell_draws_and_caps_apart(make_row: Make, make_player: Make) -> None:
    players = [make_player("doctor", "town", won=False)]
    endings = ("win", "draw", "draw", "capped")
    rows = [make_row(i, players=players, ending=ending, days=i + 1) for i, ending in enumerate(endings)]

    assert _summarise(rows)["games"] == {
        "n": 4,
        "won": 1,
        "draws": 2,
        "capped": 1,
        "days_mean": 2.5,
        "days_max": 4,
    }


def test_failed_games_count_in_no_rate(make_row: Make, make_player: Make) -> None:
    row = make_row(0, players=[make_player("doctor", "town", won=True)], winners=("town",))
    row["status"] = "failed"
    summary = _summarise([row])

    assert "wins" not in summary
    assert _at(summary, "conversations", "failed") == 1


def test_failures_of_one_kind_are_one_reason_whatever_the_turn(make_row: Make) -> None:
    rows = [make_row(i, failure=f"turn {i}/Ann Lee/0/1: bad vote") for i in range(8)]
    rows.append(make_row(9, failure="refused"))

    assert _summarise(rows[::-1])["failures"] == [
        {"reason": "turn …: bad vote", "count": 8, "task_ids": [f"task-{i:03}" for i in range(5)]},
        {"reason": "refused", "count": 1, "task_ids": ["task-009"]},
    ]


def test_failures_beyond_the_bound_are_counted_together(make_row: Make) -> None:
    rows = [make_row(i, failure=f"reason {i:03}") for i in range(REASONS_MAX + 7)]
    failures = _summarise(rows)["failures"]

    assert isinstance(failures, list)
    assert len(failures) == REASONS_MAX + 1
    assert isinstance(failures[-1], dict)
    assert (failures[-1]["reason"], failures[-1]["count"]) == ("7 other reasons", 7)


def test_summary_does_not_depend_on_the_order_of_rows(make_row: Make, make_player: Make) -> None:
    def players(index: int) -> list[JsonObject]:
        return [make_player(f"role-{index % 3}", "town", won=index % 2 == 0, model=f"m{index % 2}")]

    rows = [make_row(i, players=players(i), winners=("town",) if i % 2 == 0 else ()) for i in range(20)]
    rows += [make_row(20 + i, failure=f"reason {i % 3}") for i in range(9)]
    shuffled = random.Random(7).sample(rows, len(rows))

    assert json.dumps(_summarise(rows)) == json.dumps(_summarise(shuffled))


def test_summary_memory_does_not_follow_the_number_of_rows(make_row: Make, make_player: Make) -> None:
    """Keeping as little as the task id of every row would take twice what is allowed."""
    count = 8_000
    rows: Iterator[JsonObject] = (
        make_row(i, players=[make_player("doctor", "town", won=True)], winners=("town",)) for i in range(count)
    )
    tracemalloc.start()
    try:
        summarise(experiment_name="demo", rows=rows, planned=count, accounting={})
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 32 * count


@pytest.mark.parametrize(
    ("key", "value", "story"),
    [
        ("status", "open", "Invalid enum value 'open' - at `$.status`"),
        ("counts", None, "got `null` - at `$.counts`"),
        ("counts", {"turns": True}, "got `bool` - at `$.counts.turns`"),
        ("counts", {"turns": 1, "corrections": 0, "defaults": 0}, "missing required field `tokens`"),
        ("index", "3", "Expected `int`, got `str` - at `$.index`"),
        ("index", True, "Expected `int`, got `bool` - at `$.index`"),
        ("outcome", {"kind": "game"}, "outcome: Object missing required field"),
        ("outcome", {"kind": "game", "players": ["x"], "ending": "win", "days": 1, "winners": []}, "$.players[0]"),
    ],
)
def test_summary_refuses_a_damaged_row_by_name(make_row: Make, key: str, value: JsonValue, story: str) -> None:
    row = make_row(3)
    row[key] = value

    with pytest.raises(RunDirectoryError, match="task-003") as caught:
        _summarise([row])
    assert story in str(caught.value)


def test_summary_takes_conversations_that_are_no_games(make_row: Make) -> None:
    row = make_row(0)
    row["outcome"] = {"kind": "debate", "answer": "B"}

    assert _at(_summarise([row]), "conversations", "finished") == 1
