"""The pages of runs: their head, the list of conversations by column, the filter that chooses some, and the engines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.errors import ConfigError
from mac_runner.reports import listed
from mac_runner.reports.testing import Listed, words_of
from mac_runner.results import Column, Value, section
from mac_runner.store.testing import DoneRow, encode_json, event_line
from mac_runner.types import JsonObject, JsonValue
from mac_runner.view_model import EnginesPage, IndexColumns
from mac_runner.views.testing import (
    BINS_MAX,
    FIRST_BIN_S,
    EngineClock,
    column_views,
    combination_figures,
    index_columns,
    is_met,
    parse_filter,
    typescript,
)
from tests.cli.lab import ROOT
from tests.kit import game_player, index_row, summary_of


def test_pages_are_compiled_against_the_structs_that_python_sends() -> None:
    committed = (ROOT / "viewer" / "src" / "model.ts").read_text(encoding="utf-8")

    assert committed == typescript(), (
        "run: python -m mac_runner.views.typescript viewer/src/model.ts; then build viewer/"
    )


COLUMNS = {
    "number": Column("number"),
    "status": Column("word"),
    "winner": Column("words"),
    "days": Column("number"),
    "even": Column("truth"),
}
ROW: dict[str, Value] = {"number": 7, "status": "finished", "winner": ["town", "Jester"], "days": 5, "even": True}


@given(st.lists(st.integers(0, 100), max_size=4))
def test_combinations_on_pages_say_who_took_the_default_often(taken: list[int]) -> None:
    row = index_row(0)
    turns: JsonObject = {f"d{place}": {"turns": 100, "defaults": count} for place, count in enumerate(taken)}
    row["counts"] = {**section(row, "counts"), "turns_by_definition": turns}

    texts = combination_figures(summary_of([row]))

    noted = [f"d{place} {count}.0% of 100 turns" for place, count in enumerate(taken) if count > 5]
    assert texts.get("defaults of", "") == ", ".join(noted)
    assert set(combination_figures(summary_of([index_row(0)]))) == set(texts) - {"defaults of"}


def test_filters_choose_what_the_page_chooses() -> None:
    numbers = ("days>4", "days>=5 days<6 days!=4", "days=4|5", "days:5")
    met = (
        "",
        *numbers,
        "winner=TOWN",
        "winner:tow",
        'winner="mafia"|jester',
        "finished",
        "status==finished",
        "even",
        "jest",
    )
    unmet = (
        "days>5",
        "days!=4|5",
        "winner=tow",
        "winner!=town",
        "failed",
        "even=no",
        '"no such text"',
        "days>4 failed",
    )
    found = {text: is_met(parse_filter(text, COLUMNS), ROW, COLUMNS) for text in (*met, *unmet)}

    assert found == dict.fromkeys(met, True) | dict.fromkeys(unmet, False)
    assert not is_met(parse_filter("days!=1", COLUMNS), {**ROW, "days": None}, COLUMNS)


def test_filter_that_says_nothing_about_the_columns_is_refused_by_name() -> None:
    for text, words in {
        "dayz>4": "no column 'dayz'",
        "days>": "days is compared with nothing",
        "days>x": "days is a number",
        "winner>town": "winner has no order",
        "even=perhaps": "even is yes or no",
    }.items():
        with pytest.raises(ConfigError, match=words):
            parse_filter(text, COLUMNS)


def row(index: int, outcome: JsonValue, **more: JsonValue) -> JsonObject:
    return index_row(index, outcome) | {"task_id": f"t-{index}", **more}


ROWS = [
    row(0, {"kind": "dice", "best": "Abel", "sum": 7, "payoff": {"Abel": 3, "Cain": 4}}, metrics={"length": 9.5}),
    row(1, {"kind": "dice", "best": "Cain", "sum": 5, "even": True}, failed_attempts=[{"attempt": 1}]),
    row(2, None, status="failed", failure="no usable reply"),
    row(3, {"kind": "dice", "best": "Abel", "sum": 6.5, "even": False, "words": ["a", "b"]}, metrics={"length": None}),
]


def dice(rows: list[JsonObject]) -> Listed:
    return listed("dice").with_outcomes(rows).with_metrics(rows)


def value(found: IndexColumns, name: str, place: int) -> list[str] | float | None:
    """What a column holds of a row."""
    if name in found.numbers:
        return found.numbers[name].numbers[place]
    if name in found.lists:
        return [found.lists[name].words[code] for code in found.lists[name].lists[place]]
    code = found.words[name].codes[place]
    return None if code < 0 else [found.words[name].words[code]]


def expected(kind: str, known: Value) -> list[str] | float | None:
    """A value of the list as columns hold it."""
    if kind in ("number", "truth"):
        assert known is None or isinstance(known, int | float)
        return known
    return words_of(known) if known is not None or kind == "words" else None


def test_columns_hold_what_conditions_compare() -> None:
    how = dice(ROWS)
    found = index_columns(ROWS, how)

    assert found.rows == len(ROWS)
    assert {*found.words, *found.lists, *found.numbers} == {*how.columns}
    for place, each in enumerate(ROWS):
        values = how.values(each)
        for name, column in how.columns.items():
            assert value(found, name, place) == expected(column.kind, values.get(name)), name


def test_columns_have_outcomes_without_results_of_their_own_and_metrics() -> None:
    names = {column.name: column.kind for column in column_views(dice(ROWS))}
    due = {"best": "word", "payoff.Abel": "number", "even": "truth", "words": "words", "length": "number"}

    assert due.items() <= names.items()


def test_later_columns_stand_alone_and_no_rows_make_empty_ones() -> None:
    later, empty = index_columns(ROWS[2:], dice(ROWS), since=2), index_columns([], listed("town_of_salem"))

    assert (later.since, later.rows) == (2, 2)
    assert value(later, "failure", 0) == ["no usable reply"]
    assert value(later, "best", 1) == ["Abel"]
    assert (empty.rows, empty.words["ending"].codes) == (0, ())


def done_row(row: JsonObject) -> DoneRow:
    """A row as the journal gives it."""
    return DoneRow(str(row["task_id"]), encode_json({**row, "sha256": "0" * 64, "size_bytes": 9}))


def test_rows_that_are_still_json_give_the_same_columns() -> None:
    games: list[JsonObject] = [
        {"kind": "game", "ending": "win", "days": 3, "winners": ["town"], "players": [game_player(won=True)]},
        {"kind": "game", "ending": "draw", "days": 9, "winners": [], "players": [game_player(faction="mafia")]},
        {"kind": "another"},
    ]
    odd = row(4, None, status="failed", failure="half a pair: \ud800")
    for rows, how in (
        ([row(index, game) for index, game in enumerate(games)], listed("town_of_salem")),
        ([*ROWS, odd], dice([*ROWS, odd])),
    ):
        still_json = [done_row(each) for each in rows]
        assert index_columns(still_json, how) == index_columns(rows, how)


NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


def line(at_s: float, name: str, turn: str = "0/Abel/0/0", **fields: JsonValue) -> bytes:
    """A line of a log, `at_s` seconds after noon."""
    subject: dict[str, JsonValue] = {"task": "t-0", "turn": turn, "model": "m"} if "models" not in fields else {}
    return event_line(name, NOON + timedelta(seconds=at_s), at_s, {**subject, **fields})


def start(at_s: float, slots: int = 4, concurrency: int | None = None) -> bytes:
    return line(at_s, "EVENT_RUN_START", models={"m": slots}, concurrency=concurrency)


def request(at_s: float, took_s: float, turn: str = "0/Abel/0/0", tokens: int = 10, **more: JsonValue) -> list[bytes]:
    """A request and its reply."""
    done: dict[str, JsonValue] = {"tokens_out": tokens, "latency_ms": 1000 * took_s, "finish_reason": "stop", **more}
    return [line(at_s, "EVENT_INFER_START", turn), line(at_s + took_s, "EVENT_INFER_DONE", turn, **done)]


def engines_page(lines: Iterable[bytes]) -> EnginesPage:
    """The engines of a run from all lines of its log."""
    clock = EngineClock()
    for each in lines:
        clock.add(each)
    return clock.page()


def busy_s(page: EnginesPage) -> float:
    """The requests in flight, summed over time."""
    (engine,) = page.engines
    ends = [min(page.bin_s, page.elapsed_s - n * page.bin_s) for n in range(len(engine.busy))]
    return sum(mean * end for mean, end in zip(engine.busy, ends, strict=True))


def test_figures_are_those_of_the_log() -> None:
    lines = [
        start(0, slots=8, concurrency=4),
        *request(0.0, 0.5, tokens=7, tokens_in=90, tokens_cached=60, queue_s=0.02),
        *request(1.0, 0.5, tokens=5, tokens_in=30, tokens_cached=0, queue_s=0.02),
        line(1.6, "EVENT_INFER_START"),
        line(1.7, "EVENT_RETRY", error="busy"),
        line(2.0, "EVENT_RUN_STOP", models={}),
    ]

    page = engines_page(lines)

    (engine,) = page.engines
    assert (page.bin_s, page.elapsed_s, page.sessions) == (FIRST_BIN_S, 2.0, (0.0,))
    assert (engine.model, engine.slots, sum(engine.done), sum(engine.tokens), sum(engine.retries)) == ("m", 4, 2, 12, 1)
    assert engine.tokens_per_s == 6.0
    assert [engine.busy[int(at_s / page.bin_s)] for at_s in (0.0, 0.499, 0.5)] == [1, 1, 0]
    assert busy_s(page) == pytest.approx(1.1)
    assert engine.cached_share == 0.5
    assert [engine.latency_p50_ms, engine.latency_p95_ms] == pytest.approx([500, 500], rel=0.07)
    assert engine.queue_p95_s == pytest.approx(0.02, rel=0.07)
    assert sum(engine.latency_counts) == 2
    assert len(engine.latency_counts) == len(engine.latency_bounds_ms) + 1


def test_slots_are_the_most_that_an_engine_served_at_once() -> None:
    for concurrency, expected in ((None, 16), (12, 12)):
        resizes = [line(at_s, "EVENT_RESIZE", capacity=capacity) for at_s, capacity in ((1.0, 0), (2.0, 16), (3.0, 2))]
        (engine,) = engines_page([start(0, slots=8, concurrency=concurrency), *resizes, *request(4.0, 1.0)]).engines

        assert engine.slots == expected
        # Earlier versions wrote no queue and no tokens of prompts.
        assert (engine.cached_share, engine.queue_p50_s, engine.queue_p95_s) == (None, None, None)


def test_models_that_share_an_engine_are_one_engine_under_its_name() -> None:
    lines = [start(0), *request(0.0, 0.5), *request(0.0, 1.0, "b", model="program", engine="m")]

    (engine,) = engines_page(lines).engines

    assert (engine.model, engine.slots, sum(engine.done), sum(engine.busy) > 0) == ("m", 4, 2, True)


def test_a_run_of_milliseconds_is_drawn_in_bins_that_fit_it_and_its_rate_is_over_its_own_time() -> None:
    page = engines_page([start(0), *request(0.0, 0.02), *request(0.02, 0.02, "b")])

    (engine,) = page.engines
    assert len(engine.busy) > 5
    assert engine.tokens_per_s == pytest.approx(20 / 0.04)


def test_pause_between_sessions_is_cut_out() -> None:
    """The first session is killed with a request in flight, and the second begins a day later, after other events."""
    killed = [start(0), *request(0.0, 0.5), line(0.5, "EVENT_INFER_START", "late"), line(1.0, "EVENT_INFER_START", "b")]
    resumed = [line(86_390, "EVENT_SETTINGS_CHANGED"), start(86_400), *request(86_400, 0.5)]

    page = engines_page([*killed, *resumed, line(86_401, "EVENT_RUN_STOP", models={})])

    assert page.sessions == (0.0, 1.0)
    assert page.elapsed_s == 2.0
    assert busy_s(page) == pytest.approx(0.5 + 0.5 + 0.5)


def test_requests_in_flight_count_until_now() -> None:
    clock = EngineClock()
    for one in [start(0), line(0.25, "EVENT_INFER_START", "a"), *request(0.0, 1.0, "b")]:
        clock.add(one)

    before, again = clock.page(), clock.page()

    assert before == again
    assert busy_s(before) == pytest.approx(0.75 + 1.0)


def test_lines_that_are_no_events_change_nothing() -> None:
    good = [start(0), *request(0.0, 0.5), line(1, "EVENT_RUN_STOP", models={})]
    bad = [
        *(b"", b"\n", b"{", b"[]", b"3", b"\xff\xfe", b"\0" * 40, b'{"event":3,"time":"x"}'),
        b'{"event":"EVENT_INFER_DONE"}',
        b'{"event":"EVENT_INFER_DONE","time":"2026-05-04T12:00:00.1Z","model":{},"latency_ms":1}',
        json.dumps({"event": "EVENT_OF_ANOTHER_VERSION", "time": "2026-05-04T12:00:00.100Z"}).encode(),
        *(good[1][:cut] for cut in range(1, len(good[1]) - 1, 7)),
    ]

    assert engines_page([good[0], *bad, *good[1:]]) == engines_page(good)


@given(st.lists(st.tuples(st.floats(0, 20_000), st.floats(0.001, 900)), min_size=1, max_size=40))
def test_bins_are_bounded_and_hold_all_requests(requests: list[tuple[float, float]]) -> None:
    """Whenever requests come and end, whichever lines come first."""
    lines = [start(0)]
    ends = [
        one for n, (at_s, took_s) in enumerate(requests) for one in request(round(at_s, 3), round(took_s, 3), str(n))
    ]
    lines += sorted(ends, key=lambda one: str(json.loads(one)["time"]))

    page = engines_page(lines)

    (engine,) = page.engines
    lengths = {len(engine.busy), len(engine.done), len(engine.tokens), len(engine.retries)}
    assert lengths == {int(page.elapsed_s / page.bin_s) + 1}
    assert max(lengths) <= BINS_MAX
    assert sum(engine.done) == len(requests)
    assert busy_s(page) == pytest.approx(sum(round(took_s, 3) for _, took_s in requests), rel=0.01, abs=0.05)
