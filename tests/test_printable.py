from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.printable import printable


@pytest.mark.parametrize("text", ["", "plain words", "naïve – “quoted”", "長い名前", "😀"])
def test_printable_leaves_readable_text_alone(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202eevil", r"\u202eevil"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("line\u2028break", r"line\u2028break"),
        ("\ud800", r"\ud800"),
        ("\x9b1A", r"\x9b1A"),
    ],
)
def test_printable_writes_what_would_act_on_a_terminal_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_printable_gives_one_line_that_can_be_encoded(text: str) -> None:
    shown = printable(text)

    assert len(shown.splitlines()) <= 1
    assert shown.encode("utf-8")[:1] != b"\x1b"
    assert printable(shown) == shown
