from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.backends.testing import retry_after_s

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("0", None),
        ("-1", None),
        ("1e9", 60.0),
        ("inf", None),
        ("nan", None),
        ("soon", None),
        ("", None),
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
