"""What the body of an error says, in any of the usual forms. Pure, and total: no body makes a second error."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from mac_runner.backends.foreign import clipped
from mac_runner.backends.redaction import Redactor
from mac_runner.types import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What an error body says, on one short line; empty where it says nothing that can be read.

    `text` is the original, for verdicts only; `quoted` is the same redacted, for messages. `status` is the HTTP status
    of an error that the body names, as it does where the answer's own is 200.
    """

    text: str = ""
    quoted: str = ""
    codes: frozenset[str] = frozenset()
    status: int | None = None


def complaint_of(body: bytes, redactor: Redactor) -> Complaint:
    """The complaint in the bytes of a body."""
    try:
        said: JsonValue = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        return complaint_in(said, redactor)
    # Most likely a page of some proxy: its beginning tells a person more than nothing does.
    return complaint_saying(body.decode("utf-8", "replace"), redactor)


def complaint_in(said: JsonObject, redactor: Redactor) -> Complaint:
    """The complaint in a JSON body.

    OpenAI's form is `{"error": {"message": …, "code": …}}`, Ollama's `{"error": …}`, FastAPI's `{"detail": …}`. The
    code is a word, or a status as a number (OpenRouter, llama.cpp) or as a text (LiteLLM).
    """
    error = said.get("error", said)
    if not isinstance(error, dict):
        return complaint_saying(_words(error), redactor)
    codes = frozenset(str(code) for key in ("code", "type") if (code := error.get(key)) is not None)
    status = next(filter(None, (_status(error.get(key)) for key in ("code", "status", "status_code"))), None)
    found = complaint_saying(_words(error.get("message", said.get("detail"))), redactor)
    return replace(found, codes=codes, status=status)


def complaint_saying(words: str, redactor: Redactor) -> Complaint:
    """The complaint that consists of `words`."""
    return Complaint(text=clipped(words), quoted=redactor.quoted(words))


def _status(code: JsonValue) -> int | None:
    """The status of an error that `code` is; of a body that may say anything, nothing else is taken for one."""
    try:
        number = int(str(code))
    except ValueError:
        return None
    return number if 400 <= number < 600 else None


def _words(said: JsonValue) -> str:
    return "" if said is None else str(said)
