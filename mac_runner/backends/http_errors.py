"""HTTP errors of model servers: statuses, error bodies, Retry-After, and resending on a closed connection.

One table of statuses serves every protocol; each backend adds what its own servers say in the body. Everything here is
pure but for `resending`, which awaits what it is given.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final, TypeVar

from mac_runner.backends.redaction import Redactor
from mac_runner.backends.server_text import clipped, scalars_only
from mac_runner.errors import RETRY_AFTER_S_MAX, lacks_descriptors
from mac_runner.types import JsonObject, JsonValue

HTTP_HANG_UP_S_MAX: Final = 1.0
"""How soon a request breaks that crosses the closing of its connection: within one way there and back."""

_VERDICT_CHARS: Final = 2000

T = TypeVar("T")


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
    """The same redacted, for messages."""
    codes: frozenset[str] = frozenset()
    param: str = ""
    """The field of the request that the server objects to, if it names one."""
    status: int | None = None
    """The HTTP status that the body itself names; with status 200 this one decides."""
    generation: str = ""
    """The reply that the model had made when the server gave the request up, redacted (Groq)."""


def error_body_of(body: bytes, redactor: Redactor) -> ErrorBody:
    """The error in the bytes of a body. Never raises."""
    value = _json(body.decode("utf-8", "replace"))
    if isinstance(value, list) and len(value) == 1:
        value = value[0]  # Gemini's form.
    if isinstance(value, dict):
        return error_body_in(value, redactor)
    # Most likely a proxy's page: its beginning is better than nothing.
    return error_body_saying(body.decode("utf-8", "replace"), redactor)


def error_body_in(body: JsonObject, redactor: Redactor) -> ErrorBody:
    """The error in a JSON body; the whole of it, where its form is not known. Never raises.

    OpenAI's form is `{"error": {"message": …, "code": …}}`, Ollama's `{"error": …}`, FastAPI's `{"detail": …}`. The
    code is a word, or a status as a number (OpenRouter, llama.cpp) or as a text (LiteLLM). OpenRouter has the body of
    the server behind it in `{"error": {"metadata": {"raw": …}}}`.
    """
    error = body.get("error") or body
    if not isinstance(error, dict):
        return error_body_saying(_words(error), redactor)
    metadata = error.get("metadata")
    raw = _words(metadata.get("raw")) if isinstance(metadata, dict) else ""
    behind = _json(raw)
    inner = behind.get("error") or behind if isinstance(behind, dict) else {}
    found = inner if isinstance(inner, dict) else {}
    message = _words(error.get("message", body.get("detail"))) or (_words(body) if body else "")
    return replace(
        error_body_saying(f"{message}: {raw}" if raw else message, redactor),
        codes=frozenset(
            str(code) for one in (error, found) for name in ("code", "type") if (code := one.get(name)) is not None
        ),
        param=clipped(param) if isinstance(param := error.get("param", found.get("param")), str) else "",
        status=next(filter(None, (_status(error.get(name)) for name in ("code", "status", "status_code"))), None),
        generation=redactor.reply(scalars_only(_words(error.get("failed_generation", found.get("failed_generation"))))),
    )


def error_body_saying(words: str, redactor: Redactor) -> ErrorBody:
    """The error that consists of `words`."""
    return ErrorBody(text=clipped(words, _VERDICT_CHARS), quoted=redactor.quoted(words))


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


async def resending(
    send: Callable[[], Awaitable[T]],
    resend: Callable[[], Awaitable[T]],
    *,
    broken: tuple[type[Exception], ...],
    unreached: tuple[type[Exception], ...],
    may_resend: Callable[[], bool],
    now_s: Callable[[], float],
) -> T:
    """The answer to `send`, or to `resend` if the server had just closed the kept connection.

    A server may close a connection that it has kept, without notice, while a request is under way. So what breaks at
    once on a connection that had served before says nothing about the server: the request goes over a new one, once.
    `broken` are the errors of a broken connection, `unreached` those of one that cannot be opened. `may_resend` says
    whether the connection was a kept one. Raises whatever `send` and `resend` raise.
    """
    sent_at_s = now_s()
    try:
        return await send()
    except broken as fault:
        if not may_resend() or now_s() - sent_at_s > HTTP_HANG_UP_S_MAX:
            raise
        try:
            return await resend()
        except unreached as error:
            if lacks_descriptors(error):
                raise
            # The server was there a moment ago, so the request may be why it is gone.
            raise fault from None
