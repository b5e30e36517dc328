from __future__ import annotations

import pytest

from mac_runner.backends.keys import blotted


@pytest.mark.parametrize(
    ("key", "left"),
    [("sk-12345", b"your key *** exceeds"), ("x", b"your key sk-12345 exceeds"), (None, b"your key sk-12345 exceeds")],
)
def test_key_is_blotted_out_and_a_placeholder_leaves_words_as_they_are(key: str | None, left: bytes) -> None:
    assert blotted(b"your key sk-12345 exceeds", key) == left
