"""The header Retry-After: how long a server wants to be left alone."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from mac_runner.errors import RETRY_AFTER_S_MAX


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds from `now`, at most RETRY_AFTER_S_MAX; None when the header is missing, past, or says nothing usable.

    Both forms of RFC 9110 are read, seconds and an HTTP date; fractions of a second are sent in practice.
    """
    if header is None:
        return None
    seconds = _number(header)
    if seconds is None:
        seconds = _until(header, now)
    if seconds is None or not seconds > 0:
        return None
    return min(seconds, RETRY_AFTER_S_MAX)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _until(text: str, now: datetime) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        # A date without a zone is one of GMT, the only zone an HTTP date may have.
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return (moment - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # What the parser of mail dates raises on junk.
        return None
