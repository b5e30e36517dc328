from __future__ import annotations

import pytest

from mac_runner.backends.testing import Meaning, is_busy, meaning_of

NAMED = {
    200: Meaning.ANSWER,
    **dict.fromkeys((401, 402, 403, 404), Meaning.DENIED),
    **dict.fromkeys((408, 409, 425, 429, 529), Meaning.BUSY),
    **dict.fromkeys((502, 503, 504), Meaning.GATEWAY),
}


def test_status_with_a_meaning_of_its_own_has_it() -> None:
    assert {status: meaning_of(status) for status in NAMED} == NAMED


@pytest.mark.parametrize(
    ("first", "last", "meaning"),
    [
        (-1, 399, Meaning.FOREIGN),
        (400, 499, Meaning.REFUSED),
        (500, 599, Meaning.BROKEN),
        (600, 999, Meaning.FOREIGN),
    ],
)
def test_every_other_status_means_what_its_hundred_does(first: int, last: int, meaning: Meaning) -> None:
    assert {meaning_of(status) for status in range(first, last + 1) if status not in NAMED} == {meaning}


@pytest.mark.parametrize("meaning", Meaning)
def test_answer_that_asks_for_a_pause_is_busy_whatever_its_status(meaning: Meaning) -> None:
    assert is_busy(meaning, retry_after_s=7.0)
    assert is_busy(meaning, retry_after_s=None) is (meaning is Meaning.BUSY)
