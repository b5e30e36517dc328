"""The summary of a run: what it adds up, its tables as text, and wins by side with their intervals."""

from __future__ import annotations

import io
import json
import random
import re
import tracemalloc
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.town_of_salem.testing import RESULTS, win_tables
from mac_runner.errors import RunDirectoryError
from mac_runner.intervals import ClusteredRate, wilson
from mac_runner.reports import GridRow, summarise, summary_tables, write_tables
from mac_runner.reports.testing import LINES_MAX, PARTS_MAX, REASONS_MAX, STRETCHES_MAX, ending, warnings
from mac_runner.results import Table, section
from mac_runner.types import JsonObject, JsonValue
from tests.kit import game_player, index_row, known, render_grid, render_summary, summary_of, totals_of, unreadable

MODEL: JsonObject = {"capacity": 8, "played_s": 20.0, "busy_slot_s": 30.0, "available_slot_s": 40.0, "requests": 12}
PLAYED: JsonObject = {"wall_s": 122.0, "played_s": 20.0, "sessions": 2, "models": {"m1": MODEL}}


def _row_with(key: str, value: JsonValue) -> Any:
    """A row with another count."""
    row: Any = index_row(3)
    row["counts"][key] = value
    return row


def test_summary_adds_up_every_row_and_rates_are_over_the_time_that_was_played() -> None:
    summary = summary_of([index_row(0), index_row(1), index_row(2, failure="boom")], PLAYED, planned=4)

    assert summary["conversations"] == {"planned": 4, "finished": 2, "failed": 1}
    assert (summary["turns"], summary["corrections"], summary["defaults"]) == (30, 6, 3)
    assert summary["tokens"] == {"prompt": 300, "completion": 60, "timing": {"cached": 150}}
    assert (summary["wall_s"], summary["played_s"]) == (122.0, 20.0)
    assert (summary["turns_per_s"], summary["conversations_per_s"]) == (0.6, 0.15)
    assert summary["models"] == {"m1": {"capacity": 8, "slots_mean": 2.0, "slot_utilisation": 0.75, "requests": 12}}


def test_turns_and_models_without_a_count_of_tokens_are_told() -> None:
    nothing: JsonObject = {"prompt": 0, "completion": 0, "timing": {"cached": 0}}
    none: JsonObject = {"requests": 5, "tokens": nothing}
    models: JsonObject = {"silent": none, "idle": {**none, "requests": 0}, "old": {"requests": 5}}

    tokens = summary_of([index_row(0), _row_with("tokens", nothing), index_row(2)], {"models": models})["tokens"]

    assert (tokens["prompt"], tokens["completion"], tokens["timing"]) == (200, 40, {"cached": 100})
    assert (tokens["uncounted_turns"], tokens["uncounted_models"]) == (10, ["silent"])


def test_unusable_replies_are_added_up_by_agent_and_cause() -> None:
    counted: tuple[JsonObject, ...] = ({"illegal": 2}, {"cut_off_thought": 1, "illegal": 1})
    rows = [_row_with("unusable", {"ann": each, "bob": {"x": 1}}) for each in counted]
    summary = summary_of([index_row(0), *rows])

    assert summary["unusable"] == {"ann": {"cut_off_thought": 1, "illegal": 3}, "bob": {"x": 2}}
    damaged: tuple[JsonValue, ...] = ([], {"ann": 3}, {"ann": {"illegal": "many"}})
    for unusable in damaged:
        with pytest.raises(RunDirectoryError, match="index row of"):
            summary_of([_row_with("unusable", unusable)])


def test_rates_leave_out_what_was_ended_untimed() -> None:
    summary = summary_of(map(index_row, range(3)), {**PLAYED, "untimed": {"conversations": 1, "requests": 10}})

    assert (summary["turns"], summary["turns_per_s"], summary["conversations_per_s"]) == (30, 0.1, 0.1)


def test_summary_of_nothing_has_null_rates_and_no_wins() -> None:
    idle: JsonObject = {"capacity": 8, "busy_slot_s": 0.0, "available_slot_s": 0.0, "requests": 0}
    summary = summary_of([], {"wall_s": 0, "played_s": 0, "sessions": 0, "models": {"m1": idle}})

    assert (summary["turns_per_s"], summary["conversations_per_s"]) == (None, None)
    assert summary["models"]["m1"]["slot_utilisation"] is None
    assert summary.keys().isdisjoint({"wins", "games"})


def test_wins_count_a_faction_once_per_game_and_a_role_once_per_player() -> None:
    def players(town_won: bool) -> list[JsonObject]:
        town = [player(role, "town", won=town_won) for role in ("doctor", "doctor", "sheriff")]
        return [*town, player("godfather", "mafia", won=not town_won)]

    wins = summary_of([*(game(i, players(True), "town") for i in range(3)), game(3, players(False), "mafia")])["wins"]
    interval = [round(end, 4) for end in known(wilson(3, 4))]

    assert wins["by_faction"]["town"] == {"n": 4, "games": 4, "wins": 3, "rate": 0.75, "interval": interval}
    assert wins["by_faction"]["mafia"]["wins"] == 1
    assert [wins["by_role"]["doctor"][key] for key in ("n", "games", "wins")] == [8, 4, 6]
    assert wins["by_model"]["m1"]["n"] == 16


def test_wins_of_a_faction_are_over_the_games_that_it_was_part_of() -> None:
    """A jester wins by its own goal while another group is named; an arsonist's losses count before its first win."""
    town, lost = player("doctor", "town", won=True), player("doctor", "town", won=False)
    vampire, jester = player("vampire", "vampire", won=False), player("jester", "neutral", won=True)
    burnt, burner = (player("arsonist", "neutral", won=won) for won in (False, True))
    wins = {"arsonist": (2, 1), "neutral": (2, 1), "town": (2, 1)}
    for rows, due in (
        ([game(0, [town], "town"), game(1, [town, vampire], "town")], {"town": (2, 2), "vampire": (1, 0)}),
        ([game(0, [jester, town], "town")], {"neutral": (1, 1), "town": (1, 1)}),
        ([game(0, [burnt, town], "town"), game(1, [burner, lost], "arsonist")], wins),
    ):
        factions = summary_of(rows)["wins"]["by_faction"]
        assert [*factions] == sorted(due)
        assert {name: (each["n"], each["wins"]) for name, each in factions.items()} == due


def test_games_tell_draws_and_caps_apart_and_failed_ones_count_in_no_rate() -> None:
    players = [player("doctor", "town", won=False)]
    endings = ("win", "draw", "draw", "capped")
    rows = [game(i, players, ending=ending, days=i + 1) for i, ending in enumerate(endings)]
    failed = summary_of([game(0, [player("doctor", "town", won=True)], "town", status="failed")])

    games = {"n": 4, "won": 1, "draws": 2, "capped": 1, "days_mean": 2.5, "days_max": 4}
    assert summary_of(rows)["games"] == games
    assert "wins" not in failed
    assert failed["conversations"]["failed"] == 1


def test_failures_of_one_kind_are_one_reason_whatever_the_turn_up_to_a_bound() -> None:
    rows = [index_row(i, failure=f"turn {i}/Ann Lee/0/1: bad vote") for i in range(8)]
    rows.append(index_row(9, failure="refused"))
    many = summary_of(index_row(i, failure=f"reason {i:03}") for i in range(REASONS_MAX + 7))["failures"]

    assert summary_of(rows[::-1])["failures"] == [
        {"reason": "turn …: bad vote", "count": 8, "task_ids": [f"task-{i:03}" for i in range(5)]},
        {"reason": "refused", "count": 1, "task_ids": ["task-009"]},
    ]
    assert len(many) == REASONS_MAX + 1
    assert (many[-1]["reason"], many[-1]["count"]) == ("7 other reasons", 7)


@given(st.lists(st.tuples(st.text(alphabet=st.characters(exclude_characters=":")), st.integers(1000), st.booleans())))
def test_failures_that_differ_in_names_numbers_and_what_a_line_said_are_one_reason(
    drawn: list[tuple[str, int, bool]],
) -> None:
    def failure(text: str, number: int, is_refused: bool) -> str:
        if is_refused:
            return f"turn 0/{number}/0/1 got no answer: status 404 at {hex(number)}, seed {number}"
        return f"turn {number}/Ann/0/0: KeyError: {text!r} (a game.py:1012)"

    rows = [index_row(index, failure=failure(*each)) for index, each in enumerate(drawn)]
    other = [index_row(len(drawn), failure="turn 0/Ann/0/0: KeyError: 'role' (a game.py:1013)")]

    found = summary_of([*rows, *other])["failures"]

    counts = Counter(is_refused for _, _, is_refused in drawn)
    assert sorted(each["count"] for each in found) == sorted([1, *counts.values()])


def test_summary_does_not_depend_on_the_order_of_rows() -> None:
    def players(index: int) -> list[JsonObject]:
        return [player(f"role-{index % 3}", "town", won=index % 2 == 0, model=f"m{index % 2}")]

    rows = [game(i, players(i), *(["town"] if i % 2 == 0 else [])) for i in range(20)]
    rows += [index_row(20 + i, failure=f"reason {i % 3}") for i in range(9)]
    shuffled = random.Random(7).sample(rows, len(rows))

    assert json.dumps(summary_of(rows)) == json.dumps(summary_of(shuffled))


@pytest.mark.ci
def test_summary_memory_does_not_follow_the_number_of_rows() -> None:
    """Keeping as little as the task id of every row would take twice what is allowed."""

    def summarised(count: int) -> None:
        rows = (game(i, [player("doctor", "town", won=True)], "town") for i in range(count))
        summarise(totals_of(rows), experiment_name="demo", planned=count, accounting={})

    count = 8_000
    summarised(1)  # What is imported and compiled at the first use stays.
    tracemalloc.start()
    try:
        summarised(count)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 32 * count


def test_damaged_row_is_refused_by_name_and_a_conversation_that_is_no_game_is_not() -> None:
    damaged: list[tuple[str, JsonValue, str]] = [
        ("status", "open", "Invalid enum value 'open' - at `$.status`"),
        ("counts", None, "got `null` - at `$.counts`"),
        ("counts", {"turns": True}, "got `bool` - at `$.counts.turns`"),
        ("counts", {"turns": 1, "corrections": 0, "defaults": 0}, "missing required field `tokens`"),
        ("index", "3", "Expected `int`, got `str` - at `$.index`"),
        ("index", True, "Expected `int`, got `bool` - at `$.index`"),
        ("outcome", {"kind": "game"}, "outcome: Object missing required field"),
        ("outcome", {"kind": "game", "players": ["x"], "ending": "win", "days": 1, "winners": []}, "$.players[0]"),
    ]
    for key, value, story in damaged:
        with pytest.raises(RunDirectoryError, match="task-003") as caught:
            summary_of([index_row(3) | {key: value}])
        assert story in str(caught.value)

    assert summary_of([index_row(0, {"kind": "debate", "answer": "B"})])["conversations"]["finished"] == 1


def part(session: int, indexes: list[JsonValue], **more: JsonValue) -> JsonObject:
    start = f"2025-01-{session:02}T00:00:00.000Z"
    return {"session": session, "started_at": start, "finished": 2, "failed": 1, "indexes": indexes, **more}


def with_parts(*parts: JsonValue) -> Any:
    return summary_of([], {"parts": [*parts], "merged_runs": 2}, planned=3)


def test_parts_name_their_conversations_in_short_up_to_a_bound() -> None:
    stretches: list[JsonValue] = [[0, 31, 1], [40, 40, 1], [41, 99, 2]]
    many: list[JsonValue] = [[2 * n, 2 * n, 1] for n in range(STRETCHES_MAX + 3)]

    assert with_parts(part(1, stretches))["parts"] == [part(1, []) | {"indexes": "0-31, 40, 41-99 by 2"}]
    assert "14, and 3 more stretches" in json.dumps(with_parts(part(1, many))["parts"])


def test_parts_are_printed_where_there_are_several_with_the_run_they_were_merged_from() -> None:
    first, second = part(1, [[0, 9, 1]]), part(2, [[10, 19, 1]])
    merged = part(1, [[0, 8, 2]], run="demo.shard-1-of-2"), part(2, [[1, 9, 2]], run="x")

    assert "parts" not in render_summary(with_parts(first))
    text = render_summary(with_parts(first, second))
    assert "2025-01-01T00:00:00.000Z   0-9 " in text
    assert "2025-01-02T00:00:00.000Z   10-19 " in text
    assert "over 2 merged runs" in text
    assert "demo.shard-1-of-2   0-8 by 2" in render_summary(with_parts(*merged))
    latest = render_summary(with_parts(*(part(n, [[n, n, 1]]) for n in range(1, PARTS_MAX + 4))))
    assert "2025-01-03" not in latest
    assert "2025-01-04" in latest
    assert "and 3 earlier sessions" in latest


def player(role: str, faction: str, *, won: bool, definition: str = "hero", model: str = "m1") -> JsonObject:
    """A player of an outcome."""
    whole: JsonObject = {"agent": role.title(), "definition": definition, "model": model, "alive": won}
    return game_player(**whole, role=role, final_role=role, faction=faction, won=won)


def game(
    index: int, players: list[JsonObject], *winners: str, ending: str = "win", days: int = 5, **more: JsonValue
) -> JsonObject:
    """The index row of a game."""
    outcome: JsonObject = {"kind": "game", "ending": ending, "reason": "", "days": days}
    return index_row(index, {**outcome, "winners": [*winners], "players": [*players]}) | more


GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def summary() -> JsonObject:
    """Thirty games and two failures, between two models."""

    def players(town_won: bool) -> list[JsonObject]:
        return [
            player("sheriff", "town", won=town_won, model="m1"),
            player("godfather", "mafia", won=not town_won, model="m2"),
        ]

    rows = [game(i, players(i % 3 > 0), "town" if i % 3 > 0 else "mafia", days=3 + i % 4) for i in range(30)]
    rows.append(game(30, [player("jester", "neutral", won=False)], ending="draw"))
    rows += [index_row(31 + i, failure=f"turn {i}/Ann/0/2: no legal vote after 2 corrections") for i in range(2)]
    model: JsonObject = {**MODEL, "requests": 1200}
    played: JsonObject = {"wall_s": 122.5, "played_s": 20.0, "sessions": 1, "models": {"m1": model, "m2": model}}
    return {**summary_of(rows, played, planned=40), "experiment_name": "tos_demo"}


def test_tables_are_the_reviewed_ones_and_stay_within_the_width(summary: JsonObject) -> None:
    for width in (100, 50):
        assert render_summary(summary, width=width) == (GOLDEN / f"summary_{width}.txt").read_text(encoding="utf-8")
    for width in (40, 50, 80, 120):
        assert max(len(line) for line in render_summary(summary, width=width).splitlines()) <= width


WIDTHS = (80, 100, 140)


def test_rows_of_any_table_keep_their_names_and_words_whole_at_every_width() -> None:
    chance = Random(20)
    for _ in range(60):
        words, numbers = chance.randint(1, 4), chance.randint(0, 7)
        rows = [
            (*(some_words(chance) for _ in range(words)), *(some_words(chance, most=2) for _ in range(numbers)))
            for _ in range(chance.randint(1, 4))
        ]
        heads = [some_words(chance, most=2) for _ in range(words + numbers)]
        table = Table(some_words(chance), (*heads[:words],), (*heads[words:],), rows)
        for width in WIDTHS:
            assert unreadable([table], width) == [], table


def some_words(chance: Random, most: int = 9) -> str:
    return " ".join(
        "".join(chance.choices("abßx-é漢", k=chance.randint(1, 14))) for _ in range(chance.randint(1, most))
    )


def test_a_run_ends_in_fourteen_lines_that_say_how_it_went_and_what_to_do_next(
    summary: JsonObject, snapshot: SnapshotAssertion
) -> None:
    directory = Path("runs/tos demo")
    whole: JsonObject = {**summary, "conversations": {"planned": 33, "finished": 33, "failed": 0}, "failures": []}
    sides = section(section(whole, "wins"), "by_faction")
    duel: JsonObject = {**whole, "wins": {"by_definition_and_faction": {"a": sides, "b": sides}}}
    causes: JsonObject = {"m1": {"illegal": 400}}
    bad: JsonObject = {**summary, "defaults": 200, "corrections": 100, "unusable_by_model": causes}
    metric: JsonObject = {"conversations": 3, "errors": [{"error": "long " * 50, "count": 3, "first": "task-1"}]}
    worst: JsonObject = {**bad, "failures": many_failures(), "metric_errors": {"words": metric}}
    nothing = summary_of([], planned=3)
    shown = [ending(each, directory) for each in (whole, duel, bad, worst, nothing)]

    assert shown == snapshot
    for text in shown:
        assert len(text.splitlines()) <= LINES_MAX
        assert max(map(len, text.splitlines())) <= 80


def many_failures() -> JsonValue:
    return [{"reason": f"turn …: {n} " + "no legal vote " * 12, "count": n, "task_ids": ["task-1"]} for n in range(9)]


def test_an_ending_calls_conversations_what_their_only_environment_does(summary: JsonObject) -> None:
    talks: JsonObject = {"discussions": {"n": 3}}
    cases: list[tuple[str, list[JsonObject | None]]] = [
        ("games", [summary, summary, None]),
        ("discussions", [talks]),
        ("conversations", [summary, talks]),
        ("conversations", [summary_of([index_row(0)])]),
        ("conversations", [None]),
    ]
    for noun, summaries in cases:
        rows = [GridRow(slug="s", values={}, session=1, summary=each) for each in summaries]
        text = ending({"grid": "g"}, Path("runs/g"), rows=rows)
        assert f" {noun} finished" in text
        assert f"   {noun}, in the browser" in text


def test_an_ending_says_how_many_combinations_its_conversations_are_of() -> None:
    for begun, told in ((3, "1 of 3 combinations, "), (2, "1 of 3 combinations (2 of them begun), ")):
        counts: JsonObject = {"asked": 3, "begun": begun, "complete": 1}
        assert told in ending({"grid": "g", "combinations": counts}, Path("runs/g"), rows=[])


def test_tokens_that_nobody_counted_are_not_told_as_none(summary: JsonObject) -> None:
    tokens: JsonObject = {"prompt": 7, "completion": 3, "timing": {"cached": 0}}
    cases: list[tuple[JsonObject, str]] = [
        ({"uncounted_turns": 330}, "tokens          not counted by the engine\n"),
        ({"uncounted_turns": 30}, "tokens          7 prompt, 0 cached, 3 completion; 30 turns were not counted\n"),
        (
            {"uncounted_turns": 30, "uncounted_models": ["m2"]},
            "tokens          7 prompt, 0 cached, 3 completion; m2: not counted by the engine\n",
        ),
    ]
    for told, text in cases:
        assert text in render_summary({**summary, "tokens": {**tokens, **told}})


def test_tables_say_what_is_not_known_and_no_wait_where_all_was_play(summary: JsonObject) -> None:
    bare = render_summary(summary_of([], planned=3))

    assert "wall time       20.0 s\nplayed          20.0 s; " in render_summary({**summary, "wall_s": 20.04})
    assert "0 failed, of 3 planned" in bare
    assert "–" in bare
    assert "wins" not in bare


def test_tables_show_hostile_names_as_plain_text() -> None:
    attack = "[bold]x[/]\x1b[2J\r\n\u202eevil :smile:"
    rows = [game(0, [player(attack, attack, won=True, model=attack)], attack), index_row(1, failure=attack)]
    hostile = {**summary_of(rows, {"models": {attack: {}}}), "experiment_name": attack}
    text = render_summary(hostile, width=200)

    assert text.count(r"[bold]x[/]\x1b[2J\r\n\u202eevil :smile:") == 5
    assert not {"\x1b", "\r", "\u202e"} & set(text)


def test_tables_have_style_on_a_terminal_alone(summary: JsonObject, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    styled, plain, file = Terminal(), Terminal(), io.StringIO()
    write_tables(summary_tables(summary), styled)
    write_tables(summary_tables(summary), file)
    monkeypatch.setenv("NO_COLOR", "1")
    write_tables(summary_tables(summary), plain)

    assert "\x1b[1m" in styled.getvalue()
    assert file.getvalue() == render_summary(summary)
    assert "\x1b" not in plain.getvalue() + file.getvalue()


def test_unusable_replies_have_a_table_where_there_were_any(summary: JsonObject) -> None:
    unusable: JsonObject = {"player": {"cut_off_thought": 1200, "illegal": 3}}
    lines = render_summary({**summary, "unusable": unusable}).splitlines()
    start = lines.index("unusable replies")

    assert [line.split() for line in lines[start + 3 : start + 5]] == [
        ["player", "cut", "off", "thought", "1,200"],
        ["player", "illegal", "3"],
    ]
    assert "unusable replies" not in render_summary(summary)


_NOTED = re.compile(r"(d\d) ([\d.]+)% of ([\d,]+) turns")


def test_every_agent_definition_above_five_percent_of_defaults_is_named_and_no_other() -> None:
    for seed in range(40):
        chance = Random(seed)
        counts: dict[str, JsonValue] = {}
        for name in ("d0", "d1", "d2"):
            turns = chance.randrange(20, 3_000)
            counts[name] = {"turns": turns, "defaults": round(turns * chance.choice([0, 0.05, 0.0512, 0.2, 0.71, 1]))}
        rows = [_row_with("turns_by_definition", {name: counts[name]}) for name in counts]
        summary = summary_of([*rows, *rows])
        taken: Any = counts
        noted = {
            (name, f"{found['defaults'] / found['turns']:.1%}".rstrip("%"), f"{2 * found['turns']:,}")
            for name, found in taken.items()
            if 20 * found["defaults"] > found["turns"]
        }

        grid = render_grid({"grid": "g"}, [GridRow(slug="s", values={}, session=1, summary=summary)], width=300)
        for shown in (render_summary(summary, width=300), grid, "; ".join(warnings(summary))):
            assert {*_NOTED.findall(shown)} == noted, seed
    assert "turns_by_definition" not in summary_of([index_row(0)]), "of an earlier version"


def tables_of(outcomes: list[JsonObject]) -> dict[str, Table]:
    results = RESULTS.counter()
    for place, outcome in enumerate(outcomes):
        results.add(outcome, f"game {place}")
    return {part.title: part for part in win_tables(results.report()) if isinstance(part, Table)}


def outcome(players: list[JsonObject], winner: str) -> Any:
    return game(0, players, winner)["outcome"]


def test_a_definition_counts_once_a_game_on_each_side_that_it_was_dealt_to() -> None:
    """Whatever became of its players: an Amnesiac who joins the Mafia is no player of the Mafia's."""

    def players(town_won: bool) -> list[JsonObject]:
        turned = {**player("amnesiac", "mafia", won=not town_won, definition="a"), "final_role": "mafioso"}
        town = [player(role, "town", won=town_won, definition="a") for role in ("doctor", "sheriff")]
        return [*town, turned, player("godfather", "mafia", won=not town_won, definition="b")]

    results = RESULTS.counter()
    for place in range(5):
        results.add(outcome(players(place < 2), "town" if place < 2 else "mafia"), "game")
    wins = section(results.report(), "wins")
    found = {
        (name, side): tuple(section(sides, side)[key] for key in ("n", "games", "wins"))
        for name, sides in ((name, section(section(wins, "by_definition_and_faction"), name)) for name in "ab")
        for side in sides
    }

    assert found == {("a", "neutral"): (5, 5, 3), ("a", "town"): (5, 5, 2), ("b", "mafia"): (5, 5, 3)}
    assert [section(section(wins, "by_definition"), "a")[key] for key in ("n", "games", "wins")] == [15, 5, 7]


def test_every_table_says_its_unit_and_sides_are_mixed_only_where_it_is_said() -> None:
    players = [
        player("doctor", "town", won=True, definition="a"),
        player("doctor", "town", won=True, definition="b", model="m2"),
        player("godfather", "mafia", won=False, definition="a"),
    ]
    tables = tables_of([outcome(players, "town")] * 3)

    assert {title: table.numbers[:3] for title, table in tables.items()} == {
        "wins by faction (n games)": ("n", "wins", "rate"),
        "wins by definition and side (n games)": ("n", "wins", "rate"),
        "wins by model and side (n games)": ("n", "wins", "rate"),
        "wins by role (n players)": ("n", "games", "wins"),
        "wins by definition, over all sides (n players)": ("n", "games", "wins"),
        "wins by model, over all sides (n players)": ("n", "games", "wins"),
    }


def test_intervals_of_the_printed_tables_take_the_players_of_a_game_for_one_case() -> None:
    """Teams win together, and a definition has a different number of players on each side in each game."""
    chance, outcomes, in_all, in_town = Random(11), [], ClusteredRate(), list[bool]()
    for _ in range(60):
        town_won = chance.random() < 0.6
        sides = ["town"] * 7 + ["mafia"] * 3
        cast = [(name, side) for name, side in zip(chance.choices("ab", k=10), sides, strict=True)]
        won = {"town": town_won, "mafia": not town_won}
        players = [player("role", side, won=won[side], definition=name) for name, side in cast]
        outcomes.append(outcome(players, "town" if town_won else "mafia"))
        own = [side for name, side in cast if name == "a"]
        in_all.add(sum(won[side] for side in own), len(own))
        in_town += [town_won] * ("town" in own)

    tables = tables_of(outcomes)
    of_games = wilson(sum(in_town), len(in_town))
    for told, place, interval in (("over all sides", ("a",), in_all.interval), ("and side", ("a", "town"), of_games)):
        (table,) = (table for title, table in tables.items() if "definition" in title and told in title)
        (row,) = (row for row in table.rows if row[: len(place)] == place)
        lo, hi = known(interval)
        assert row[-2] == f"{lo:.1%} – {hi:.1%}"
