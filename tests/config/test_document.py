"""The text of a file as YAML: what is read, and what is refused with its line."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.config.testing import (
    YAML_DEPTH_MAX,
    YAML_NODES_MAX,
    YAML_SIZE_BYTES_MAX,
    parse_document,
    plain_scalar,
)
from mac_runner.errors import ConfigError
from mac_runner.problems import CONFIG_PROBLEMS_MAX
from mac_runner.section import flaw_of
from mac_runner.types import JsonValue

ALIAS_BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

TOO_DEEP = f"nested deeper than {YAML_DEPTH_MAX} levels; close what was left open, or nest less"
HOSTILE = {
    "brackets of 33 levels": (b"[" * 33 + b"]" * 33, f"f:1: {TOO_DEEP}"),
    "nested brackets": (b"[" * 3_000, f"f:1: {TOO_DEEP}"),
    "nested braces": (b"{" * 500_000, f"f:1: {TOO_DEEP}"),
    "nested dashes": (b"- " * 500_000, f"f:1: {TOO_DEEP}"),
    "alias bomb": (ALIAS_BOMB.encode(), f"f:5: more than {YAML_NODES_MAX} values, aliases written out"),
    "a mebibyte of values": (b"[" + b"1," * 524_000 + b"]", f"f:1: more than {YAML_NODES_MAX} values"),
    "too large": (b"#" * (YAML_SIZE_BYTES_MAX + 1), f"f: larger than {YAML_SIZE_BYTES_MAX} bytes"),
    "alias in itself": (b"a: &a [*a]", 'f:1: the alias "a" is inside its own anchor'),
    "unknown alias": (b"a: 1\nb: *c", 'f:2: the alias "c" has no anchor'),
    "python tag": (b"a: !!python/object/apply:os.system [ls]", "f:1: the tag"),
    "known tag": (b"a: !!str 1", "f:1: the tag"),
    "own tag": (b"a: 1\nb: !secret x", "f:2: the tag"),
    "duplicate key": (b"a: 1\nb: 2\na: 3", 'f:3: duplicate key "a"; first on line 1'),
    "nested duplicate": (b"a: {b: 1, b: 2}", 'f:1: duplicate key "b"'),
    "number as key": (b"a: 1\n1: 2", "f:2: the key 1 is not a text"),
    "null as key": (b"~: 2", "f:1: the key null is not a text"),
    "list as key": (b"[a]: 2", "f:1: the key a list or a mapping is not a text"),
    "merge key": (b"a: &a {b: 1}\nc:\n  <<: *a", "f:3: merge keys (<<) are not allowed"),
    "two documents": (b"a: 1\n---\nb: 2", "f:2: a second document begins"),
    "empty": (b"", "f:1: empty"),
    "only comments": (b"# a\n# b\n", "f:1: empty"),
    "not UTF-8": (b"a: 1\nb: \xff", "f:2: byte 0xff is not UTF-8"),
    "NUL": (b"a: 1\nb: \x00", "f:2: the character U+0000"),
    "half a pair": (b'a: "\\ud800"', "f:1:"),
    "broken": (b"a: 1\nb: [1\nc: 2", "f:3: not valid YAML: "),
}


def refusal(data: bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_document(data, "f")
    return str(caught.value).splitlines()


@pytest.mark.parametrize(("data", "expected"), HOSTILE.values(), ids=HOSTILE.keys())
def test_document_refuses_hostile_text_with_its_line_in_little_memory(data: bytes, expected: str) -> None:
    tracemalloc.start()
    try:
        lines = refusal(data)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert lines[0].startswith(expected)
    assert peak_bytes < 50 << 20


def test_document_takes_what_is_just_within_the_bounds() -> None:
    depth = YAML_DEPTH_MAX - 1

    assert parse_document(b"[" * depth + b"1" + b"]" * depth, "f").value
    assert parse_document(b"[" + b"1," * (YAML_NODES_MAX - 1) + b"]", "f").value
    assert parse_document(b"a: 1" + b" " * (YAML_SIZE_BYTES_MAX - 4), "f").value == {"a": 1}


def test_document_counts_the_depth_behind_an_alias() -> None:
    deep = "[" * 20 + "1" + "]" * 20

    assert "nested deeper" in refusal(f"a: &a {deep}\nb: {'[' * 20}*a{']' * 20}".encode())[0]


def test_document_reports_all_problems_together_up_to_a_bound() -> None:
    lines = refusal(b"a: yes\nb: 012\na: !x 1")

    assert [line.split(": ")[0] for line in lines] == ["f:1", "f:2", "f:3", "f:3"]
    assert len(refusal(b"- no\n" * 9_000)) == CONFIG_PROBLEMS_MAX + 1


def test_document_keeps_the_line_of_every_path() -> None:
    document = parse_document(b"a:\n  b: 1\n  c:\n    - x\n    - z: 2\nd: &d {e: 1}\nf: *d\n", "f")

    assert document.value == {"a": {"b": 1, "c": ["x", {"z": 2}]}, "d": {"e": 1}, "f": {"e": 1}}
    assert document.lines[("a", "b")] == 2
    assert document.lines[("a", "c")] == 3
    assert document.lines[("a", "c", 1, "z")] == 5
    assert document.lines[("f",)] == 7
    assert document.lines[("f", "e")] == 6


def test_document_tolerates_a_byte_order_mark() -> None:
    assert parse_document(b"\xef\xbb\xbfa: 1", "f").value == {"a": 1}


@given(st.binary(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"#,? \n01<~", max_size=200).map(str.encode))
def test_document_gives_a_value_or_a_config_error_and_nothing_else(data: bytes) -> None:
    with suppress(ConfigError):
        parse_document(data, "f")


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


SOUND = (
    "http://127.0.0.1:11434 https://api.example.com/v1/ http://[::1]:8000/v1 http://[fe80::1%25eth0]:8000/v1 "
    "http://gpu-1/openai/v1 http://bücher.example/v1 http://h/a%2Fb/v1"
)
FLAWED = {
    "http://h:99999/v1": "Port out of range",
    "http://h:abc/v1": "Port could not be cast",
    "http://h:0/v1": "no port 0",
    "http://[::1/v1": "Invalid IPv6 URL",
    "http:///v1": "no host",
    "http://:8000/v1": "no host",
    "http://ex..com/v1": "label",
    f"http://{'a' * 64}.com/v1": "label",
    "http://a\\b/v1": "characters",
    "http://a\x08b/v1": "characters",
    "http://h/v1?key=x": "ends with its path",
    "http://h/v1#x": "ends with its path",
}


def test_an_impossible_address_is_refused_with_its_flaw() -> None:
    assert {url: flaw for url, flaw in FLAWED.items() if flaw not in str(flaw_of(url))} == {}
    assert [url for url in SOUND.split() if flaw_of(url) is not None] == []


@given(rest=st.text(max_size=40))
def test_any_text_has_a_flaw_or_none(rest: str) -> None:
    assert flaw_of(f"http://{rest}") != ""
