"""HTTP errors of model servers: statuses, error bodies and Retry-After. Pure.

One table of statuses serves every protocol; each dialect adds what its own servers say in the body.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

from mac_runner.backends.redaction import Redactor
from mac_runner.backends.server_text import clipped, scalars_only
from mac_runner.errors import RETRY_AFTER_S_MAX
from mac_runner.types import JsonObject, JsonValue

_VERDICT_CHARS: Final = 2000


class Meaning(Enum):
    """What a status says about the request, or about the server."""

    ANSWER = "answer"
    """The body has the answer."""
    BUSY = "busy"
    """Not now: the server works, and may answer the same request later."""
    BROKEN = "broken"
    """The server failed at this request; the status does not say whether it fails at every request."""
    GATEWAY = "gateway"
    """A gateway says that the engine behind it does not serve."""
    DENIED = "denied"
    """The key, the account, the address or the model's name is wrong: perhaps for this request, perhaps for all."""
    REFUSED = "refused"
    """This request is wrong, and stays so."""
    FOREIGN = "foreign"
    """No engine answers a completion with this status: something else listens here."""


_MEANINGS: Final = {
    200: Meaning.ANSWER,
    401: Meaning.DENIED,
    402: Meaning.DENIED,
    403: Meaning.DENIED,
    404: Meaning.DENIED,
    408: Meaning.BUSY,
    409: Meaning.BUSY,
    425: Meaning.BUSY,
    429: Meaning.BUSY,
    502: Meaning.GATEWAY,
    503: Meaning.GATEWAY,
    504: Meaning.GATEWAY,
    529: Meaning.BUSY,  # In no standard; some services send it when they are overloaded.
}


def meaning_of(status: int) -> Meaning:
    """What any `status` means."""
    if status in _MEANINGS:
        return _MEANINGS[status]
    if 400 <= status < 500:
        return Meaning.REFUSED
    return Meaning.BROKEN if 500 <= status < 600 else Meaning.FOREIGN


def is_busy(meaning: Meaning, *, retry_after_s: float | None) -> bool:
    """Whether an answer says "not now": by its status, or by asking for a pause, whatever its status."""
    return meaning is Meaning.BUSY or retry_after_s is not None


def retry_after_s(header: str | None, now: datetime) -> float | None:
    """Seconds from `now`, at most RETRY_AFTER_S_MAX; None when the header is missing, past, or unusable.

    Both forms of RFC 9110 are read, seconds and an HTTP date; fractions of a second are sent in practice.
    """
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        seconds = _seconds_until(header, now)
    return min(seconds, RETRY_AFTER_S_MAX) if seconds > 0 else None


def _seconds_until(text: str, now: datetime) -> float:
    try:
        moment = parsedate_to_datetime(text)
        # A date without a zone is in GMT, the only zone an HTTP date may have.
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # What the parser of mail dates raises on junk.
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """What an error body says, on one short line; empty where nothing can be read."""

    text: str = ""
    """The original, for verdicts only; longer than what is quoted, since gateways put words of their own first."""
    quoted: str = ""
    """The same for messages, withheld if it repeats a key."""
    codes: frozenset[str] = frozenset()
    param: str = ""
    """The field of the request that the server objects to, if it names one."""
    status: int | None = None
    """The HTTP status that the body itself names; with status 200 this one decides."""
    generation: str = ""
    """The reply that the model had made when the server gave the request up, withheld if it repeats a key (Groq)."""


def error_body_of(body: bytes, redactor: Redactor) -> ErrorBody:
    """The error in the bytes of a body. Never raises."""
    text = body.decode("utf-8", "replace")
    value = _json(text)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]  # Gemini's form.
    if not isinstance(value, dict):
        value = {"error": text} if text else {}  # Most likely a proxy's page: its beginning is better than nothing.
    return error_body_in(value, redactor)


def error_body_in(body: JsonObject, redactor: Redactor) -> ErrorBody:
    """The error in a JSON body; the whole of it, where its form is not known. Never raises.

    OpenAI's form is `{"error": {"message": …, "code": …}}`, Ollama's `{"error": …}`, FastAPI's `{"detail": …}`. The
    code is a word, or a status as a number (OpenRouter, llama.cpp) or as a text (LiteLLM). OpenRouter has the body of
    the server behind it in `{"error": {"metadata": {"raw": …}}}`.
    """
    error = body.get("error") or body
    if not isinstance(error, dict):
        error = {"message": error}
    metadata = error.get("metadata")
    raw = _words(metadata.get("raw")) if isinstance(metadata, dict) else ""
    behind = _json(raw)
    inner = behind.get("error") or behind if isinstance(behind, dict) else {}
    found = inner if isinstance(inner, dict) else {}
    message = _words(error.get("message", body.get("detail"))) or (_words(body) if body else "")
    words = f"{message}: {raw}" if raw else message
    return ErrorBody(
        text=clipped(words, _VERDICT_CHARS),
        quoted=redactor.quoted(words),
        codes=frozenset(
            str(code) for one in (error, found) for name in ("code", "type") if (code := one.get(name)) is not None
        ),
        param=clipped(param) if isinstance(param := error.get("param", found.get("param")), str) else "",
        status=next(filter(None, (_status(error.get(name)) for name in ("code", "status", "status_code"))), None),
        generation=redactor.reply(scalars_only(_words(error.get("failed_generation", found.get("failed_generation"))))),
    )


def _json(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value


def _status(code: object) -> int | None:
    """The error status that `code` spells; a code may be anything."""
    try:
        number = int(str(code))
    except ValueError:
        return None
    return number if 400 <= number < 600 else None


def _words(value: JsonValue) -> str:
    if isinstance(value, dict | list):
        try:
            return json.dumps(value, ensure_ascii=False)
        except RecursionError:
            return ""
    return "" if value is None else str(value)
