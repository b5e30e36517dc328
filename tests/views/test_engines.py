"""The engines over time: what the lines of an event log say, whatever is missing or torn in them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.store.testing import event_line
from mac_runner.types import JsonValue
from mac_runner.view_model import EnginesPage
from mac_runner.views.testing import BINS_MAX, FIRST_BIN_S, EngineClock, engines_page

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
    assert engine.busy[:5] == (1, 1, 1, 1, 0)
    assert busy_s(page) == pytest.approx(1.1)
    assert engine.cached_share == 0.5
    assert engine.latency_p50_ms == pytest.approx(500, rel=0.07)
    assert engine.latency_p95_ms == pytest.approx(500, rel=0.07)
    assert engine.queue_p95_s == pytest.approx(0.02, rel=0.07)
    assert sum(engine.latency_counts) == 2
    assert len(engine.latency_counts) == len(engine.latency_bounds_ms) + 1


def test_slots_are_the_most_that_an_engine_served_at_once() -> None:
    for concurrency, expected in ((None, 16), (12, 12)):
        resizes = [line(at_s, "EVENT_RESIZE", capacity=capacity) for at_s, capacity in ((1.0, 0), (2.0, 16), (3.0, 2))]
        (engine,) = engines_page([start(0, slots=8, concurrency=concurrency), *resizes]).engines

        assert engine.slots == expected


def test_pause_between_sessions_is_cut_out() -> None:
    """The first session is killed with a request in flight, and the second begins a day later, after other events."""
    killed = [start(0), *request(0.0, 0.5), line(0.5, "EVENT_INFER_START", "late"), line(1.0, "EVENT_INFER_START", "b")]
    resumed = [
        line(86_390, "EVENT_SETTINGS_CHANGED"),
        start(86_400),
        *request(86_400, 0.5),
        line(86_401, "EVENT_RUN_STOP", models={}),
    ]

    page = engines_page([*killed, *resumed])

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


def test_log_without_queue_and_prompt_tokens_has_none() -> None:
    """As earlier versions wrote it."""
    (engine,) = engines_page([start(0), *request(0, 1)]).engines

    assert (engine.cached_share, engine.queue_p50_s, engine.queue_p95_s) == (None, None, None)


def test_lines_that_are_no_events_change_nothing() -> None:
    good = [start(0), *request(0.0, 0.5), line(1, "EVENT_RUN_STOP", models={})]
    bad = [
        *(
            b"",
            b"\n",
            b"{",
            b"[]",
            b"3",
            b"\xff\xfe",
            b"\0" * 40,
            b'{"event":3,"time":"x"}',
            b'{"event":"EVENT_INFER_DONE"}',
        ),
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
