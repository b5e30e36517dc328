from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from mac_runner.reports import render_summary, summarise, write_summary
from mac_runner.types import JsonObject

Make = Callable[..., JsonObject]

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def summary(make_row: Make, make_player: Make) -> JsonObject:
    """Thirty games and two failures, between two models."""

    def players(town_won: bool) -> list[JsonObject]:
        return [
            make_player("sheriff", "town", won=town_won, model="m1"),
            make_player("godfather", "mafia", won=not town_won, model="m2"),
        ]

    rows = [
        make_row(i, players=players(i % 3 > 0), winners=("town",) if i % 3 > 0 else ("mafia",), days=3 + i % 4)
        for i in range(30)
    ]
    rows.append(make_row(30, players=[make_player("jester", "neutral", won=False)], ending="draw"))
    rows += [make_row(31 + i, failure=f"turn {i}/Ann/0/2: no legal vote after 2 corrections") for i in range(2)]
    model: JsonObject = {
        "capacity": 8,
        "played_s": 20.0,
        "busy_slot_s": 30.0,
        "available_slot_s": 40.0,
        "requests": 1200,
    }
    accounting: JsonObject = {"wall_s": 122.5, "played_s": 20.0, "sessions": 1, "models": {"m1": model, "m2": model}}
    return summarise(experiment_name="tos_demo", rows=rows, planned=40, accounting=accounting)


@pytest.mark.parametrize("width", [100, 50])
def test_tables_are_the_reviewed_ones(summary: JsonObject, width: int) -> None:
    golden = (GOLDEN / f"summary_{width}.txt").read_text(encoding="utf-8")

    assert render_summary(summary, width=width) == golden


@pytest.mark.parametrize("width", [40, 50, 80, 120])
def test_tables_stay_within_the_width(summary: JsonObject, width: int) -> None:
    assert max(len(line) for line in render_summary(summary, width=width).splitlines()) <= width


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"uncounted_turns": 330}, "tokens          not counted by the engine\n"),
        ({"uncounted_turns": 30}, "tokens          7 prompt, 0 cached, 3 completion; 30 turns were not counted\n"),
        (
            {"uncounted_turns": 30, "uncounted_models": ["m2"]},
            "tokens          7 prompt, 0 cached, 3 completion; m2: not counted by the engine\n",
        ),
    ],
)
def test_tokens_that_nobody_counted_are_not_told_as_none(summary: JsonObject, told: JsonObject, text: str) -> None:
    tokens: JsonObject = {"prompt": 7, "completion": 3, "timing": {"cached": 0}, **told}

    assert text in render_summary({**summary, "tokens": tokens})


def test_time_that_was_all_play_is_told_without_a_wait(summary: JsonObject) -> None:
    assert "wall time       20.0 s\nplayed          20.0 s; " in render_summary({**summary, "wall_s": 20.04})


def test_tables_of_a_bare_summary_say_unknown() -> None:
    bare = summarise(experiment_name="empty", rows=[], planned=3, accounting={})

    assert "0 finished, 0 failed, of 3 planned" in render_summary(bare)
    assert "–" in render_summary(bare)
    assert "wins" not in render_summary(bare)


def test_tables_show_hostile_names_as_plain_text(make_row: Make, make_player: Make) -> None:
    attack = "[bold]x[/]\x1b[2J\r\n\u202eevil :smile:"
    rows = [
        make_row(0, players=[make_player(attack, attack, won=True, model=attack)], winners=(attack,)),
        make_row(1, failure=attack),
    ]
    hostile = summarise(experiment_name=attack, rows=rows, planned=2, accounting={"models": {attack: {}}})
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
