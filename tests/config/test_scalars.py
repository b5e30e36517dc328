from __future__ import annotations

import pytest

from mac_runner.config.document import parse_document, plain_scalar
from mac_runner.types import JsonValue


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("False", False),
        ("0", 0),
        ("-12", -12),
        ("+3", 3),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.", 1.0),
        ("nULL", "nULL"),
        ("2001-01-01", "2001-01-01"),
        ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
        ("127.0.0.1:11434", "127.0.0.1:11434"),
        ("http://localhost:80", "http://localhost:80"),
        ("classic-10", "classic-10"),
        ("5m", "5m"),
        ("_", "_"),
        ("none", "none"),
        ("1" * 65, "1" * 65),
    ],
)
def test_plain_scalar_follows_the_core_schema(text: str, value: JsonValue) -> None:
    read = plain_scalar(text)

    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "No",
        "ON",
        "off",
        "y",
        "N",
        "012",
        "-07",
        "0o17",
        "0x1F",
        "0b11",
        "12:30",
        "12:30:45",
        "1_000",
        "1_0.5",
        ".inf",
        "-.INF",
        ".nan",
        "1e999",
        "9999999999999999999",
    ],
)
def test_plain_scalar_refuses_what_two_readers_read_differently(text: str) -> None:
    with pytest.raises(ValueError, match=r"ambiguous|finite|digits"):
        plain_scalar(text)


@pytest.mark.parametrize("text", ["yes", "012", "12:30", "1_000", "null", "1", "true", "<<"])
def test_a_quoted_scalar_is_always_a_text(text: str) -> None:
    assert parse_document(f"a: '{text}'".encode(), "f").value == {"a": text}
    assert parse_document(f"{{'{text}': 1}}".encode(), "f").value == {text: 1}
