"""What the body of an error says, in any of the usual forms. Pure, and total: no body makes a second error."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mac_runner.backends.foreign import clipped
from mac_runner.types import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What an error body says, on one short line; empty where it says nothing that can be read.

    `status` is the HTTP status of an error that the body names, as it does where the answer's own is 200.
    """

    text: str = ""
    codes: frozenset[str] = frozenset()
    status: int | None = None


def complaint_of(body: bytes) -> Complaint:
    """The complaint in the bytes of a body."""
    try:
        said: JsonValue = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        said = None
    if isinstance(said, dict):
        return complaint_in(said)
    # Most likely a page of some proxy: its beginning tells a person more than nothing does.
    return Complaint(text=clipped(body.decode("utf-8", "replace")))


def complaint_in(said: JsonObject) -> Complaint:
    """The complaint in a JSON body.

    OpenAI's form is `{"error": {"message": …, "code": …}}`, Ollama's `{"error": …}`, FastAPI's `{"detail": …}`. The
    code is a word, or a status as a number (OpenRouter, llama.cpp) or as a text (LiteLLM).
    """
    error = said.get("error", said)
    if not isinstance(error, dict):
        return Complaint(text=_words(error))
    codes = frozenset(str(code) for key in ("code", "type") if (code := error.get(key)) is not None)
    status = next(filter(None, (_status(error.get(key)) for key in ("code", "status", "status_code"))), None)
    return Complaint(text=_words(error.get("message", said.get("detail"))), codes=codes, status=status)


def _status(code: JsonValue) -> int | None:
    """The status of an error that `code` is; of a body that may say anything, nothing else is taken for one."""
    try:
        number = int(str(code))
    except ValueError:
        return None
    return number if 400 <= number < 600 else None


def _words(said: JsonValue) -> str:
    return "" if said is None else clipped(str(said))
