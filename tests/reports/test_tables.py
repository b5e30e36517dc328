from __future__ import annotations

import io
from pathlib import Path

import pytest

from mac_runner.reports import render_summary, write_summary
from mac_runner.types import JsonObject
from tests.kit import index_row, summary_of
from tests.reports.games import game, player

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
    model: JsonObject = {
        "capacity": 8,
        "played_s": 20.0,
        "busy_slot_s": 30.0,
        "available_slot_s": 40.0,
        "requests": 1200,
    }
    played: JsonObject = {"wall_s": 122.5, "played_s": 20.0, "sessions": 1, "models": {"m1": model, "m2": model}}
    return {**summary_of(rows, played, planned=40), "experiment_name": "tos_demo"}


def test_tables_are_the_reviewed_ones_and_stay_within_the_width(summary: JsonObject) -> None:
    for width in (100, 50):
        assert render_summary(summary, width=width) == (GOLDEN / f"summary_{width}.txt").read_text(encoding="utf-8")
    for width in (40, 50, 80, 120):
        assert max(len(line) for line in render_summary(summary, width=width).splitlines()) <= width


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


def test_time_that_was_all_play_is_told_without_a_wait(summary: JsonObject) -> None:
    assert "wall time       20.0 s\nplayed          20.0 s; " in render_summary({**summary, "wall_s": 20.04})


def test_tables_of_a_bare_summary_say_unknown() -> None:
    bare = summary_of([], planned=3)

    assert "0 failed, of 3 planned" in render_summary(bare)
    assert "–" in render_summary(bare)
    assert "wins" not in render_summary(bare)


def test_tables_show_hostile_names_as_plain_text() -> None:
    attack = "[bold]x[/]\x1b[2J\r\n\u202eevil :smile:"
    rows = [game(0, [player(attack, attack, won=True, model=attack)], attack), index_row(1, failure=attack)]
    hostile = {**summary_of(rows, {"models": {attack: {}}}), "experiment_name": attack}
    text = render_summary(hostile, width=200)

    assert text.count(r"[bold]x[/]\x1b[2J\r\n\u202eevil :smile:") == 5
    assert not {"\x1b", "\r", "\u202e"} & set(text)


def test_tables_go_to_a_file_without_any_control_character(summary: JsonObject) -> None:
    stream = io.StringIO()
    write_summary(summary, stream)

    assert stream.getvalue() == render_summary(summary)
    assert "\x1b" not in stream.getvalue()


def test_tables_have_style_on_a_terminal(summary: JsonObject, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    styled, plain = Terminal(), Terminal()
    write_summary(summary, styled)
    monkeypatch.setenv("NO_COLOR", "1")
    write_summary(summary, plain)

    assert "\x1b[1m" in styled.getvalue()
    assert "\x1b" not in plain.getvalue()


def test_unusable_replies_have_a_table_where_there_were_any(summary: JsonObject) -> None:
    unusable: JsonObject = {"player": {"cut_off_thought": 1200, "illegal": 3}}
    lines = render_summary({**summary, "unusable": unusable}).splitlines()
    start = lines.index("unusable replies")

    assert [line.split() for line in lines[start + 3 : start + 5]] == [
        ["player", "cut", "off", "thought", "1,200"],
        ["player", "illegal", "3"],
    ]
    assert "unusable replies" not in render_summary(summary)
