from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from mac_runner.status import Reading, StatusFrame, TurnRow
from mac_runner.status.picture import line, pending, tokens, turn
from mac_runner.status.quantities import duration, quantity
from mac_runner.types import TokenCount


def test_durations_read_like_a_clock_and_quantities_keep_three_digits() -> None:
    durations = {
        None: "–",
        0: "0:00:00",
        59.6: "0:01:00",
        3723: "1:02:03",
        180_000: "2d 2:00:00",
        -1: "0:00:00",
    }
    quantities = {
        None: "–",
        0: "0",
        9.4: "9.40",
        999: "999",
        999.6: "1.00k",
        12_345: "12.3k",
        999_600: "1.00M",
        4_560_000: "4.56M",
        7.2e9: "7.20G",
    }
    assert {seconds: duration(seconds) for seconds in durations} == durations
    assert {value: quantity(value) for value in quantities} == quantities


@given(st.floats(0, 9e11))
def test_quantity_is_at_most_five_characters(value: float) -> None:
    assert len(quantity(value)) <= 5


def test_turn_keeps_the_end_of_a_long_task_id_and_shows_control_characters_as_escapes() -> None:
    row = TurnRow(task_id="a-very-long-experiment-name-00042", round=3, agent="Ann", model="m", note="after Bob")
    hostile = TurnRow(task_id="\x1b[2J", round=0, agent="\r", model="\n", note="\t")

    assert turn(row, task_chars_max=10) == "[…ame-00042] r3 Ann after Bob (m)"
    assert turn(hostile) == r"[\x1b[2J] r0 \r \t (\n)"


def test_tokens_that_nobody_counts_are_not_told_as_none(make_reading: Callable[..., Reading]) -> None:
    reading = make_reading(tokens=TokenCount(), silent_models=("llama",))
    frame = StatusFrame(reading=reading, turns_per_s=9.0, tokens_per_s=0.0)

    assert tokens(frame) == "tokens not counted by the engine"
    assert "9 turns/s, tokens not counted by the engine; elapsed" in line(frame)


def test_tokens_name_the_models_that_do_not_count(make_reading: Callable[..., Reading]) -> None:
    frame = StatusFrame(reading=make_reading(silent_models=("a", "\x1b[2J")), tokens_per_s=5.0)

    assert tokens(frame) == r"tokens 1.20M in (45% cached), 345k out, 5/s, not counted by a, \x1b[2J"
    assert "5 tokens/s" in line(frame)


def test_tokens_before_the_first_answer_are_none(make_reading: Callable[..., Reading]) -> None:
    frame = StatusFrame(reading=make_reading(tokens=TokenCount(), turns=0))

    assert tokens(frame) == "tokens 0 in (– cached), 0 out, –/s"


def test_heading_of_the_pending_says_what_they_wait_for(make_reading: Callable[..., Reading]) -> None:
    for blocked, backing_off, text in (
        (0, 0, "BLOCKED 0 (waiting for others)"),
        (12, 0, "BLOCKED 12 (waiting for others)"),
        (0, 5, "BACKING OFF 5 (before a retry)"),
        (12, 5, "BLOCKED 12 · BACKING OFF 5"),
    ):
        assert pending(make_reading(blocked=blocked, backing_off=backing_off)) == text


def test_line_tells_the_whole_frame(frame: StatusFrame) -> None:
    assert line(frame) == (
        "tos_100games: finished 45/100 (written 43), failed 1, open 32; in flight llama31_8b 254/256; "
        "ready 89, blocked 12, backing off 0; 99.1 turns/s, 34.5k tokens/s; elapsed 0:04:10, ETA 0:05:02"
    )
