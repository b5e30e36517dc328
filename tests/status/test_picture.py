"""The status as a picture and in words."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from mac_runner.fleet.testing import LaneState, LaneStatus
from mac_runner.status import Meter, ModelSlots, Reading, StatusFrame, TurnRow
from mac_runner.status.testing import STATUS_ROWS_MAX, duration, line, pending, picture, quantity, tokens, turn
from mac_runner.types import TokenCount

MakeReading = Callable[..., Reading]
ATTACK = "[bold]x[/]\x1b[2J\r\n\u202e:smile:" + "長" * 60
SIZES = [(20, 6), (40, 24), (60, 10), (71, 24), (72, 24), (80, 24), (120, 40), (250, 80)]


def _lines(frame: StatusFrame, width: int, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height, color_system=None, markup=False).print(
        picture(frame, width=width, height=height)
    )
    return out.getvalue().splitlines()


def test_picture_fits_the_terminal(frame: StatusFrame) -> None:
    for (width, height), models in product(SIZES, (0, 1, 9)):
        slots = tuple(ModelSlots(name=f"m{i}" * 20, in_flight=i, slots=8) for i in range(models))
        lines = _lines(replace(frame, reading=replace(frame.reading, models=slots)), width, height)

        assert all(cell_len(line) <= width for line in lines)
        # Below this height the head alone is too much, and the live view crops it.
        assert len(lines) < max(height, 6 + min(models, 6))


def test_picture_of_hostile_names_keeps_its_shape(frame: StatusFrame, make_reading: MakeReading) -> None:
    row = TurnRow(task_id=ATTACK, round=1, agent=ATTACK, model=ATTACK, note=ATTACK)
    slots = (ModelSlots(name=ATTACK, in_flight=1, slots=8),)
    rows = {"ready_rows": (row,) * 3, "pending_rows": (row,) * 3}
    reading = make_reading(experiment_name=ATTACK, profile=ATTACK, models=slots, **rows)
    benign = TurnRow(task_id="t", round=1, agent="a", model="m")
    calm = make_reading(ready_rows=(benign,) * 3, pending_rows=(benign,) * 3)
    for width, height in SIZES:
        lines = _lines(replace(frame, reading=reading), width, height)

        assert len(lines) == len(_lines(replace(frame, reading=calm), width, height))
        assert all(cell_len(line) <= width for line in lines)
        assert not {"\x1b", "\r", "\u202e"} & set("".join(lines))


def test_picture_shows_ready_and_blocked_turns_side_by_side(frame: StatusFrame) -> None:
    lines = _lines(frame, 100, 24)
    heading = next(index for index, line in enumerate(lines) if "READY 89" in line)

    assert "BLOCKED 12" in lines[heading]
    assert "[bbq_0] r0 spkr_000 (llama31_8b)" in lines[heading + 1]
    assert "[bbq_0] r0 mod_001 after spkr_000 (llama31_8b)" in lines[heading + 1]
    assert len(lines) == heading + 1 + len(frame.reading.ready_rows)


def test_picture_tells_turns_that_back_off_from_those_that_others_block(make_reading: MakeReading) -> None:
    """In the narrowest terminal that has room for two lists, too."""
    row = TurnRow(task_id="t", round=1, agent="a", model="m", note="retry 2")
    reading = make_reading(blocked=1234, backing_off=256, pending_rows=(row,))
    text = "\n".join(_lines(StatusFrame(reading=reading), 72, 24))

    assert "BLOCKED 1234 · BACKING OFF 256" in text
    assert "[t] r1 a retry 2" in text


def test_picture_of_a_run_at_work(frame: StatusFrame, snapshot: SnapshotAssertion) -> None:
    """As it is, and with what limits it, what came of it and its lanes: first those that take no requests."""
    results = "of 45: winner mafia 55%, town 45%"
    fleet = (
        lane("m@0", in_flight=61, tokens_per_s=4310.0, prefix_hits=0.91),
        lane("m@1", LaneState.RESTING, deaths=2, restarts=1, fault="it was killed by signal 9"),
        lane("n@0", LaneState.ASLEEP),
    )
    reading = replace(frame.reading, failed=2, corrections=12, defaults=3, results=results, lanes=fleet)
    reading = replace(reading, default_shares={"ann": 0.71, "bob": 0.05})
    full = replace(frame, reading=reading, limit="model llama31_8b (254/256 busy, 89 waiting)")

    assert {"plain": _lines(frame, 100, 24), "full": _lines(full, 100, 30), "in a line": line(full)} == snapshot


def test_picture_says_unknown_before_anything_is_known_and_sums_up_models_beyond_the_bound(
    make_reading: MakeReading,
) -> None:
    empty = make_reading(planned=0, finished=0, failed=0, models=(), turns=0, ready_rows=(), pending_rows=())
    text = "\n".join(_lines(StatusFrame(reading=empty), 80, 24))
    slots = tuple(ModelSlots(name=f"model-{i}", in_flight=1, slots=8) for i in range(9))
    lines = _lines(StatusFrame(reading=make_reading(models=slots)), 100, 24)

    assert "ETA –" in text
    assert "turns 0, –/s" in text
    assert any("… 4 more" in line and "4/32" in line for line in lines)


def test_engine_that_answers_nothing_is_named_and_no_time_is_promised_while_all_are_silent(
    make_reading: MakeReading,
) -> None:
    works = ModelSlots(name="up", in_flight=3, slots=4, utilisation=0.5)
    silent = ModelSlots(name="down", in_flight=0, slots=4, utilisation=0.1, unanswered_s=12.0)
    meter = Meter()
    meter.frame(make_reading(models=(works,), turns=100, elapsed_s=200.0))
    one = meter.frame(make_reading(models=(works, silent), elapsed_s=210.0))
    every = meter.frame(make_reading(models=(silent, replace(silent, name="too", unanswered_s=7.0)), elapsed_s=220.0))

    assert "no answer for 0:00:12" in "\n".join(_lines(one, 100, 24))
    assert "nothing runs" not in "\n".join(_lines(one, 100, 24))
    assert one.eta_s is not None
    assert every.eta_s is None
    for text in ("\n".join(_lines(every, 100, 24)), line(every)):
        assert "for 0:00:07" in text
        assert "ETA" not in text


def test_picture_has_two_colours(frame: StatusFrame) -> None:
    reading = replace(frame.reading, failed=2, corrections=12, defaults=3, results="of 45: winner mafia 55%, town 45%")
    limited = replace(frame, reading=reading, limit="model llama31_8b (254/256 busy, 89 waiting)")
    out = io.StringIO()
    console = Console(file=out, width=100, height=30, color_system="standard", force_terminal=True, markup=False)
    console.print(picture(limited, width=100, height=30))

    # Yellow for the limit, bold red for failures, and no other colour.
    colours = set(re.findall(r"\x1b\[([0-9;]*3[0-7][0-9;]*)m", out.getvalue()))
    assert colours == {"33", "1;31"}


def test_rows_of_a_tall_terminal_are_used(make_reading: MakeReading) -> None:
    rows = tuple(TurnRow(task_id=f"t{i}", round=1, agent="a", model="m") for i in range(STATUS_ROWS_MAX))
    reading = make_reading(ready_rows=rows, pending_rows=rows)

    assert len(_lines(StatusFrame(reading=reading), 100, 50)) == 49
    assert len(_lines(StatusFrame(reading=reading), 100, 24)) == 23


def lane(name: str, state: LaneState = LaneState.UP, **more: Any) -> LaneStatus:
    return LaneStatus(name=name, model="m", place="gpu 0", state=state, slots=64, **more)


def test_picture_with_lanes_fits_the_terminal_and_leaves_room_for_turns(frame: StatusFrame) -> None:
    for (width, height), lanes in product(SIZES, (1, 8, 1000)):
        fleet = tuple(lane(f"{ATTACK}@{i}", list(LaneState)[i % 9], fault=ATTACK, deaths=i) for i in range(lanes))
        lines = _lines(replace(frame, reading=replace(frame.reading, lanes=fleet)), width, height)

        assert all(cell_len(line) <= width for line in lines)
        assert len(lines) < max(height, 7)
        assert not {"\x1b", "\r", "\u202e"} & set("".join(lines))
        assert height < 24 or "READY 89" in "\n".join(lines)


def test_plain_line_names_the_lanes_that_are_not_up_and_no_others(frame: StatusFrame) -> None:
    well = (lane("m@0"), lane("m@1"), lane("n@0", LaneState.ASLEEP))
    ill = (*well, *(lane(f"x@{i}", LaneState.RETIRED) for i in range(5)))

    assert "lane" not in line(replace(frame, reading=replace(frame.reading, lanes=well)))
    text = line(replace(frame, reading=replace(frame.reading, lanes=ill)))
    assert "2/8 up, 1 asleep" in text
    assert [word for word in text.split() if word.strip("(").startswith("x@")] == ["(x@0", "x@1", "x@2"]
    assert "2 more)" in text


def test_durations_read_like_a_clock_and_quantities_keep_three_digits() -> None:
    durations = {None: "–", 0: "0:00:00", 59.6: "0:01:00", 3723: "1:02:03", 180_000: "2d 2:00:00", -1: "0:00:00"}
    small = {None: "–", 0: "0", 9.4: "9.40", 999: "999", 999.6: "1.00k", 12_345: "12.3k"}
    quantities = {**small, 999_600: "1.00M", 4_560_000: "4.56M", 7.2e9: "7.20G"}
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
