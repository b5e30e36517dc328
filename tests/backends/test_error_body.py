from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.backends.testing import Redactor, error_body_of

UNKEYED = Redactor(None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "no such key", "code": 7}}', "no such key"),
        (b'{"error": "out of luck"}', "out of luck"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"object": "error", "message": "no such thing", "code": 404}', "no such thing"),
        (b'{"error": {"code": 7}}', ""),
        (b"", ""),
        (b'"boom"', '"boom"'),
        (b"404 page not found", "404 page not found"),
    ],
)
def test_complaint_is_found_in_every_usual_form(body: bytes, text: str) -> None:
    assert error_body_of(body, UNKEYED).text == text


def test_codes_are_told_apart_from_the_words() -> None:
    body = b'{"error": {"message": "spent", "type": "insufficient_quota", "code": 429}}'

    assert error_body_of(body, UNKEYED).codes == {"insufficient_quota", "429"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error": {"message": "slow down", "code": 429}}', 429),
        (b'{"error": {"message": "slow down", "type": "busy", "code": "429"}}', 429),
        (b'{"error": {"message": "spent", "status": 402}}', 402),
        (b'{"object": "error", "message": "no such thing", "code": 404}', 404),
        (b'{"error": {"message": "cut off", "code": "length", "status": 500}}', 500),
        (b'{"error": {"message": "well", "code": 200}}', None),
        (b'{"error": {"message": "odd", "code": true}}', None),
        (b'{"error": {"message": "odd", "code": [429]}}', None),
        (b'{"error": "429"}', None),
        (b"429", None),
    ],
)
def test_status_inside_is_that_of_an_error_or_none(body: bytes, status: int | None) -> None:
    assert error_body_of(body, UNKEYED).status == status


def test_page_is_quoted_on_one_short_line() -> None:
    page = b"<html>\n<h1>\x1b[31m" + b"Bad Gateway " * 100 + b"</html>"

    text = error_body_of(page, UNKEYED).text
    assert text.startswith("<html> <h1>")
    assert text.isprintable()
    assert len(text) <= 400


@pytest.mark.parametrize("depth", [10, 900, 990, 100_000])
def test_depth_of_a_body_is_no_second_error(depth: int) -> None:
    brackets = b"[" * depth + b"]" * depth

    assert len(error_body_of(b'{"error": {"message": ' + brackets + b"}}", UNKEYED).text) <= 400


@given(body=st.binary(max_size=200))
def test_any_body_makes_one_printable_line(body: bytes) -> None:
    assert error_body_of(body, UNKEYED).text.isprintable()
