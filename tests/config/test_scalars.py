from __future__ import annotations

import pytest

from mac_runner.config.testing import parse_document, plain_scalar
from mac_runner.types import JsonValue

PLAIN: dict[str, JsonValue] = {
    "": None,
    "~": None,
    "null": None,
    "true": True,
    "False": False,
    "0": 0,
    "-12": -12,
    "+3": 3,
    "1.5": 1.5,
    ".5": 0.5,
    "1e3": 1000.0,
    "1.": 1.0,
}
TEXTS = (
    f"nULL 2001-01-01 2001-12-14t21:59:43.10-05:00 127.0.0.1:11434 http://localhost:80 classic-10 5m _ none {'1' * 65}"
)
AMBIGUOUS = (
    "yes No ON off y N 012 -07 0o17 0x1F 0b11 12:30 12:30:45 1_000 1_0.5 .inf -.INF .nan 1e999 9999999999999999999"
)


def test_plain_scalar_follows_the_core_schema() -> None:
    expected = PLAIN | {text: text for text in TEXTS.split()}
    read = {text: plain_scalar(text) for text in expected}

    assert read == expected
    assert [*map(type, read.values())] == [*map(type, expected.values())]


def test_plain_scalar_refuses_what_two_readers_read_differently(subtests: pytest.Subtests) -> None:
    for text in AMBIGUOUS.split():
        with subtests.test(text), pytest.raises(ValueError, match=r"ambiguous|finite|digits"):
            plain_scalar(text)


def test_a_quoted_scalar_is_always_a_text() -> None:
    for text in ("yes", "012", "12:30", "1_000", "null", "1", "true", "<<"):
        assert parse_document(f"a: '{text}'".encode(), "f").value == {"a": text}
        assert parse_document(f"{{'{text}': 1}}".encode(), "f").value == {text: 1}
