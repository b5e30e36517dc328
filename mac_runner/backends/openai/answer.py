"""A server's answer (status, headers, body) → a Reply, or a SendingError. Pure, and total: nothing else ever comes out.

| answer | what becomes of it |
|---|---|
| 200 with a completion | the reply |
| 400 and the like about the context length | a reply with FinishReason.OVERFLOW |
| 408, 409, 425, 429, 500 and other 5xx | asked again, after Retry-After where it is given |
| 500 of a server whose engine has ended | asked again; a canary tells whether the endpoint died over this request |
| 502, 503, 504; a malformed 200; a redirect | asked again, and the endpoint is held to be shaky |
| 401, 402, 403, 404; no quota left | the endpoint is doubtful: a canary tells whether it refuses everybody |
| any other 4xx | this request is refused for good |
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from mac_runner.backends.foreign import clipped
from mac_runner.backends.openai.completion import read_completion
from mac_runner.backends.openai.decoding import decode
from mac_runner.backends.openai.faults import SendingError, Standing
from mac_runner.backends.retry_after import retry_after_s
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply

_AGAIN: Final = frozenset({408, 409, 425, 429})
_GATEWAY: Final = frozenset({502, 503, 504})
_DENIED: Final = frozenset({401, 402, 403, 404})
_TOO_LONG: Final = frozenset({400, 413, 422})

NO_QUOTA: Final = "insufficient_quota"
OVERFLOW_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
OVERFLOW_TEXTS: Final = (
    "maximum context length",  # OpenAI, vLLM
    "longer than the maximum model length",  # vLLM
    "longer than the model's context length",  # SGLang
    "exceeds the available context size",  # llama.cpp
)
ENGINE_ENDED: Final = "EngineCore encountered an issue"
"""What vLLM's server says to everybody once its engine has ended, until it ends itself."""
STILL_RUNNING: Final = "already running"
"""What vLLM says of a request id whose first sending it has not yet noticed to be given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came over the wire, as far as it is looked at."""

    status: int
    body: bytes
    retry_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """What an error body says; empty where it says nothing we can read."""

    text: str = ""
    codes: frozenset[str] = frozenset()


def read_answer(answer: Answer, *, has_tokens: bool, now: datetime) -> Reply:
    """The reply to a completion request; `has_tokens` when token ids were asked for. Raises SendingError."""
    if answer.status == 200:
        return read_completion(decode(answer.body), has_tokens=has_tokens)
    complaint = complaint_of(answer)
    if is_overflow(answer.status, complaint):
        return Reply(text="", finish_reason=FinishReason.OVERFLOW)
    raise fault_of(answer, complaint, now)


def fault_of(answer: Answer, complaint: Complaint, now: datetime) -> SendingError:
    """What is to be done about an answer that is neither a completion nor an overflow."""
    status = answer.status
    text = f"status {status}" + (f": {complaint.text}" if complaint.text else "")
    if status in _DENIED or NO_QUOTA in complaint.codes:
        return SendingError(text, standing=Standing.DOUBTFUL, verdict=Verdict.FAIL_CONVERSATION)
    if status >= 500 and ENGINE_ENDED in complaint.text:
        standing = Standing.CUT_OFF
    elif status in _GATEWAY or not 400 <= status < 600:
        standing = Standing.SHAKY
    elif status in _AGAIN or status >= 500 or STILL_RUNNING in complaint.text:
        standing = Standing.SOUND
    else:
        return SendingError(text, standing=Standing.SOUND, verdict=Verdict.FAIL_CONVERSATION)
    return SendingError(text, standing=standing, retry_after_s=retry_after_s(answer.retry_after, now))


def is_overflow(status: int, complaint: Complaint) -> bool:
    """Whether prompt and reply together were too long for the model's context."""
    return status in _TOO_LONG and (
        not complaint.codes.isdisjoint(OVERFLOW_CODES) or any(text in complaint.text.lower() for text in OVERFLOW_TEXTS)
    )


def complaint_of(answer: Answer) -> Complaint:
    """What the body of an error says, in any of the usual forms. Never raises."""
    try:
        body = decode(answer.body)
    except SendingError:
        # Most likely a page of some proxy: its beginning tells a person more than nothing does.
        return Complaint(text=clipped(answer.body[:2_000].decode("utf-8", "replace")))
    error = body.get("error", body)
    if not isinstance(error, dict):
        return Complaint(text=_words(error))
    codes = frozenset(str(code) for key in ("code", "type") if (code := error.get(key)) is not None)
    return Complaint(text=_words(error.get("message", body.get("detail"))), codes=codes)


def model_names(answer: Answer, now: datetime) -> tuple[str, ...]:
    """The models a server lists. Raises SendingError."""
    if answer.status != 200:
        raise fault_of(answer, complaint_of(answer), now)
    entries = decode(answer.body).get("data")
    names = [_name(entry) for entry in entries] if isinstance(entries, list) else []
    if not isinstance(entries, list) or None in names:
        raise SendingError("it lists no models", standing=Standing.SHAKY)
    return tuple(name for name in names if name is not None)


def _name(entry: JsonValue) -> str | None:
    name = entry.get("id") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None


def _words(said: JsonValue | JsonObject) -> str:
    return "" if said is None else clipped(str(said))
