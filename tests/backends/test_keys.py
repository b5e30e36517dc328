from __future__ import annotations

import pytest

from mac_runner.backends.foreign import clipped
from mac_runner.backends.keys import blotted, unspoken
from mac_runner.errors import TransientBackendError
from mac_runner.limits import ENGINE_ERROR_CHARS_MAX

KEY = "sk-canary-0123456789"


@pytest.mark.parametrize(
    ("key", "left"),
    [("sk-12345", "your key *** exceeds"), ("x", "your key sk-12345 exceeds"), (None, "your key sk-12345 exceeds")],
)
def test_key_is_blotted_out_and_a_placeholder_leaves_words_as_they_are(key: str | None, left: str) -> None:
    assert blotted("your key sk-12345 exceeds", key) == left


@pytest.mark.parametrize("gap", ["x", " ", "é", "\x1b"])
def test_key_is_blotted_out_wherever_a_quotation_is_clipped(gap: str) -> None:
    """Most of what stands before the key is left out of a quotation where it is white space."""
    for chars_max in (40, ENGINE_ERROR_CHARS_MAX):
        for before in range(4 * chars_max + 1):
            text = blotted(clipped(f"{gap * before}{KEY} or not", chars_max), KEY)

            assert KEY[:8] not in text


def test_error_keeps_all_but_the_key() -> None:
    error = TransientBackendError(f"no such key: {KEY}", retry_after_s=3.0, is_busy=True)
    with pytest.raises(TransientBackendError) as caught, unspoken(KEY):
        raise error

    assert caught.value is error
    assert str(error) == "no such key: ***"
    assert (error.retry_after_s, error.is_busy) == (3.0, True)
