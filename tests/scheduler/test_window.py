from __future__ import annotations

import pytest

from mac_runner.limits import ANSWERS_TO_GROW, REFUSALS_TO_SHRINK, REST_S, RETRY_AFTER_S_MAX
from mac_runner.scheduler.window import Window

LIMIT = 64


def turned_away(in_flight: int) -> Window:
    """A window that was just closed to so many requests."""
    window = Window()
    refuse(window, in_flight)
    return window


def refuse(window: Window, in_flight: int) -> None:
    for _ in range(REFUSALS_TO_SHRINK):
        window.turned_away(in_flight)


def answer(window: Window, times: int) -> None:
    for _ in range(times):
        window.answered(window.within(LIMIT), LIMIT)


def test_an_engine_that_turns_nobody_away_is_handed_all_it_may_have() -> None:
    window = Window()
    answer(window, 1_000)

    assert window.within(LIMIT) == LIMIT


@pytest.mark.parametrize(("in_flight", "size"), [(0, 1), (1, 1), (5, 5), (63, 63)])
def test_an_engine_that_turns_a_request_away_is_handed_what_it_has_and_at_least_one(in_flight: int, size: int) -> None:
    window = turned_away(in_flight)

    assert window.within(LIMIT) == size


def test_refusals_that_answers_make_up_for_close_no_window() -> None:
    window = Window()
    for _ in range(100):
        window.turned_away(50)
        answer(window, 1)

    assert window.size is None


def test_each_few_answers_add_twice_as_much_until_all_is_handed_again() -> None:
    window = turned_away(5)
    sizes = []
    while window.size is not None:
        sizes.append(window.size)
        answer(window, min(window.size, ANSWERS_TO_GROW))

    assert sizes == [5, 6, 8, 12, 20, 36]
    assert window.within(LIMIT) == LIMIT


def test_a_small_window_grows_once_all_of_it_is_answered() -> None:
    window = turned_away(1)
    sizes = []
    for _ in range(3):
        sizes.append(window.within(LIMIT))
        answer(window, min(sizes[-1], ANSWERS_TO_GROW))

    assert sizes == [1, 2, 4]


def test_after_it_was_wrong_it_grows_by_one_again() -> None:
    window = turned_away(5)
    answer(window, 5 + 6)
    refuse(window, 7)
    answer(window, 7)

    assert window.size == 8


def test_a_window_that_is_not_in_use_does_not_grow() -> None:
    window = turned_away(5)
    for _ in range(100):
        window.answered(4, LIMIT)

    assert window.size == 5


def test_an_engine_is_left_alone_for_longer_each_time_and_no_longer_than_the_request_it_turned_away() -> None:
    window = Window()

    assert [window.rest_s(3.0) for _ in range(5)] == [REST_S, 2 * REST_S, 4 * REST_S, 3.0, 3.0]
    assert [window.rest_s(None) for _ in range(100)][-1] == RETRY_AFTER_S_MAX
    window.answered(1, LIMIT)
    assert window.rest_s(3.0) == REST_S
