from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from mac_runner.status import Reading, StatusFrame, TurnRow
from mac_runner.status.testing import duration, line, pending, quantity, tokens, turn
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

    assert turn(row, task_chars_max=10).startswith("[…ame-00042] r3 Ann")
    assert turn(hostile) == r"[\x1b[2J] r0 \r \t (\n)"


def test_wording_of_tokens_turns_and_lines(
    make_reading: Callable[..., Reading], frame: StatusFrame, snapshot: SnapshotAssertion
) -> None:
    """What nobody counts is not told as none, and models that do not count are named."""
    uncounted = StatusFrame(
        reading=make_reading(tokens=TokenCount(), silent_models=("llama",)), turns_per_s=9.0, tokens_per_s=0.0
    )
    partly = StatusFrame(reading=make_reading(silent_models=("a", "\x1b[2J")), tokens_per_s=5.0)
    pairs = ((0, 0), (12, 0), (0, 5), (12, 5))

    assert {
        "a frame": line(frame),
        "tokens that nobody counts": (tokens(uncounted), line(uncounted)),
        "tokens that some count": (tokens(partly), line(partly)),
        "tokens before the first answer": tokens(StatusFrame(reading=make_reading(tokens=TokenCount(), turns=0))),
        "what waits": [pending(make_reading(blocked=blocked, backing_off=resting)) for blocked, resting in pairs],
    } == snapshot
