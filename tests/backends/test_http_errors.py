"""What an answer with an error says: what its status means, what is quoted of it, and how long it wants to be left."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.backends.testing import Meaning, Redactor, error_body_of, meaning_of, retry_after_s

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
UNKEYED = Redactor(None)
NAMED = {
    200: Meaning.ANSWER,
    **dict.fromkeys((401, 402, 403, 404), Meaning.DENIED),
    **dict.fromkeys((408, 409, 425, 429, 529), Meaning.BUSY),
    **dict.fromkeys((502, 503, 504), Meaning.GATEWAY),
}


def test_status_means_what_its_name_or_its_hundred_does() -> None:
    hundreds = {
        **dict.fromkeys(range(-1, 1000), Meaning.FOREIGN),
        **dict.fromkeys(range(400, 500), Meaning.REFUSED),
        **dict.fromkeys(range(500, 600), Meaning.BROKEN),
    }

    assert {status: meaning_of(status) for status in hundreds} == hundreds | NAMED


@pytest.mark.parametrize(
    ("body", "text", "status"),
    [
        (b'{"error": {"message": "no such key", "code": 7}}', "no such key", None),
        (b'{"error": "out of luck"}', "out of luck", None),
        (b'{"detail": "Not Found"}', "Not Found", None),
        (b'{"object": "error", "message": "no such thing", "code": 404}', "no such thing", 404),
        (b'{"error": {"code": 7}}', '{"error": {"code": 7}}', None),
        (b'[{"error": {"message": "too much", "code": 400}}]', "too much", 400),
        (b'{"errors": [{"why": "no"}]}', '{"errors": [{"why": "no"}]}', None),
        (b'{"error": {"message": "no", "metadata": {"raw": "why not"}}}', "no: why not", None),
        (b"", "", None),
        (b'"boom"', '"boom"', None),
        (b"404 page not found", "404 page not found", None),
        (b'{"error": {"message": "slow down", "code": 429}}', "slow down", 429),
        (b'{"error": {"message": "slow down", "type": "busy", "code": "429"}}', "slow down", 429),
        (b'{"error": {"message": "spent", "status": 402}}', "spent", 402),
        (b'{"error": {"message": "cut off", "code": "length", "status": 500}}', "cut off", 500),
        (b'{"error": {"message": "well", "code": 200}}', "well", None),
        (b'{"error": {"message": "odd", "code": true}}', "odd", None),
        (b'{"error": {"message": "odd", "code": [429]}}', "odd", None),
        (b'{"error": "429"}', "429", None),
        (b"429", "429", None),
    ],
)
def test_complaint_and_status_inside_are_found_in_every_usual_form(body: bytes, text: str, status: int | None) -> None:
    found = error_body_of(body, UNKEYED)

    assert (found.text, found.status) == (text, status)


def test_codes_are_told_apart_from_the_words() -> None:
    body = b'{"error": {"message": "spent", "type": "insufficient_quota", "code": 429}}'

    assert error_body_of(body, UNKEYED).codes == {"insufficient_quota", "429"}


def test_page_is_quoted_on_one_short_line() -> None:
    page = b"<html>\n<h1>\x1b[31m" + b"Bad Gateway " * 100 + b"</html>"

    text = error_body_of(page, UNKEYED).quoted
    assert text.startswith("<html> <h1>")
    assert text.isprintable()
    assert len(text) <= 400


@pytest.mark.parametrize("depth", [10, 900, 990, 100_000])
def test_depth_of_a_body_is_no_second_error(depth: int) -> None:
    brackets = b"[" * depth + b"]" * depth

    assert len(error_body_of(b'{"error": {"message": ' + brackets + b"}}", UNKEYED).quoted) <= 400


@given(body=st.binary(max_size=200))
def test_any_body_makes_one_printable_line(body: bytes) -> None:
    found = error_body_of(body, UNKEYED)

    assert f"{found.text}{found.quoted}".isprintable()


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        *((none, None) for none in (None, "0", "-1", "inf", "nan", "soon", "")),
        ("7", 7.0),
        ("0.5", 0.5),
        ("1e9", 60.0),
        ("Thu, 01 Jan 2026 12:00:30 GMT", 30.0),
        ("Thu, 01 Jan 2026 12:00:30 -0000", 30.0),
        ("Thu, 01 Jan 2026 13:00:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 11:59:59 GMT", None),
        ("Thu, 99 Jan 2026 11:59:59 GMT", None),
        ("Thu, 01 Jan 99999 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_obeyed_and_capped(header: str | None, pause_s: float | None) -> None:
    assert retry_after_s(header, NOW) == pause_s


@pytest.mark.ci
@given(header=st.text() | st.from_regex(r"\A[A-Z][a-z]{2}, \d+ [A-Z][a-z]{2} -?\d+ \d+:\d+:\d+ \S*\Z"))
def test_any_retry_after_is_a_bounded_pause_or_none(header: str) -> None:
    pause_s = retry_after_s(header, NOW)

    assert pause_s is None or 0 < pause_s <= 60
