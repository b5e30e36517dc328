"""A server's answer (status, headers, body) → a Reply, or a SendingError. Pure, and total: nothing else ever comes out.

What a status says stands in `statuses`; what some servers say in the body takes precedence:

| answer | what becomes of it |
|---|---|
| 400 and the like about the context length | a reply with FinishReason.OVERFLOW |
| 400 of a reasoning model that its limit cut off in its thought | a reply that is an open thought |
| no quota left, which OpenAI calls 429 | as with a key that is wrong: waiting does not help |
| 500 of a vLLM whose engine has ended | asked again; a canary tells whether the endpoint died over this request |
| 400 of a vLLM that still has the request | asked again: it has not yet noticed that its first sending was given up |
| 200 with an error, as OpenRouter tells what happened after it began | as with the status that the error names |
| 200 of LM Studio for a path that it does not have | as with 404 |
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from mac_runner.backends.chat import OPEN_THOUGHT
from mac_runner.backends.complaint import Complaint, complaint_in, complaint_of
from mac_runner.backends.openai.completion import read_completion
from mac_runner.backends.openai.decoding import decode
from mac_runner.backends.openai.faults import SendingError, Standing
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.retry_after import retry_after_s
from mac_runner.backends.statuses import Meaning, is_busy, meaning_of
from mac_runner.errors import Verdict
from mac_runner.types import FinishReason, JsonObject, JsonValue, Reply

_TOO_LONG: Final = frozenset({200, 400, 413, 422})
"""With 200 an error has come that names no status."""

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
ALL_THOUGHT: Final = "max_tokens or model output limit was reached"
"""What OpenAI says when a thought, which nobody is shown, left no room for the reply."""
STILL_RUNNING: Final = "already running"
"""What vLLM says of a request id as long as it has not noticed that the first sending was given up."""
NO_SUCH_PATH: Final = "Unexpected endpoint or method"
"""What LM Studio says, with status 200, where it serves nothing."""


class _Treatment(NamedTuple):
    """What is done about a request, and about the endpoint that answered it so."""

    verdict: Verdict
    standing: Standing


_TREATMENTS: Final = {
    Meaning.BUSY: _Treatment(Verdict.RETRY, Standing.SOUND),
    Meaning.BROKEN: _Treatment(Verdict.RETRY, Standing.FAILING),
    Meaning.GATEWAY: _Treatment(Verdict.RETRY, Standing.SHAKY),
    Meaning.DENIED: _Treatment(Verdict.FAIL_CONVERSATION, Standing.DOUBTFUL),
    Meaning.REFUSED: _Treatment(Verdict.FAIL_CONVERSATION, Standing.REFUSING),
    Meaning.FOREIGN: _Treatment(Verdict.RETRY, Standing.SHAKY),
}
_ENDED: Final = _Treatment(Verdict.RETRY, Standing.CUT_OFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came over the wire, as far as it is looked at."""

    status: int
    body: bytes
    retry_after: str | None = None
    location: str | None = None


def read_answer(answer: Answer, *, has_tokens: bool, now: datetime, redactor: Redactor) -> Reply:
    """The reply to a completion request; `has_tokens` when token ids were asked for. Raises SendingError."""
    if answer.status == 200:
        body = decode(answer.body, redactor)
        error = _error_in(body)
        if error is None:
            return read_completion(body, has_tokens=has_tokens, redactor=redactor)
        complaint = complaint_in(error, redactor)
    else:
        complaint = complaint_of(answer.body, redactor)
    status = _status(answer, complaint)
    if is_overflow(status, complaint):
        return Reply(text="", finish_reason=FinishReason.OVERFLOW)
    if status in _TOO_LONG and ALL_THOUGHT in complaint.text:
        return Reply(text=OPEN_THOUGHT, finish_reason=FinishReason.LENGTH)
    raise fault_of(answer, complaint, now, redactor)


def _error_in(body: JsonObject) -> JsonObject | None:
    """What holds an error in a body that came with status 200: the body itself, or the choice that failed half-way."""
    choices = body.get("choices")
    if not choices:
        return body if body.get("error") else None
    first = choices[0] if isinstance(choices, list) else None
    return first if isinstance(first, dict) and first.get("error") else None


def _status(answer: Answer, complaint: Complaint) -> int:
    """The status that decides: that of the answer, or for 200 that of the error inside, if it names one."""
    return complaint.status or 200 if answer.status == 200 else answer.status


def fault_of(answer: Answer, complaint: Complaint, now: datetime, redactor: Redactor) -> SendingError:
    """What is to be done about an answer that is neither a completion nor an overflow, but an error."""
    status = _status(answer, complaint)
    inside = ", told with status 200" if answer.status == 200 != status else ""
    text = f"status {status}{inside}" + (f": {complaint.quoted}" if complaint.quoted else "")
    if 300 <= answer.status < 400 and answer.location:
        text += f"; it sends on to {redactor.quoted(answer.location)}, and nothing is sent on: name the right base_url"
    has_ended = ENGINE_ENDED in complaint.text and status >= 500
    meaning = Meaning.BROKEN if has_ended else _meaning(status, complaint)
    verdict, standing = _ENDED if has_ended else _TREATMENTS[meaning]
    pause_s = retry_after_s(answer.retry_after, now) if verdict is Verdict.RETRY else None
    return SendingError(
        text,
        standing=standing,
        verdict=verdict,
        retry_after_s=pause_s,
        is_busy=is_busy(meaning, retry_after_s=pause_s),
    )


def _meaning(status: int, complaint: Complaint) -> Meaning:
    """What an answer says: by its body where that says more than its status."""
    if NO_QUOTA in complaint.codes or (status == 200 and NO_SUCH_PATH in complaint.text):
        return Meaning.DENIED
    if STILL_RUNNING in complaint.text:
        return Meaning.BUSY
    return Meaning.FOREIGN if status == 200 else meaning_of(status)


def is_overflow(status: int, complaint: Complaint) -> bool:
    """Whether prompt and reply together were too long for the model's context."""
    return status in _TOO_LONG and (
        not complaint.codes.isdisjoint(OVERFLOW_CODES) or any(text in complaint.text.lower() for text in OVERFLOW_TEXTS)
    )


def model_names(answer: Answer, now: datetime, redactor: Redactor) -> tuple[str, ...]:
    """The models a server lists. Raises SendingError."""
    if answer.status != 200:
        raise fault_of(answer, complaint_of(answer.body, redactor), now, redactor)
    body = decode(answer.body, redactor)
    if body.get("error"):
        raise fault_of(answer, complaint_in(body, redactor), now, redactor)
    entries = body.get("data")
    names = [_name(entry) for entry in entries] if isinstance(entries, list) else []
    if not isinstance(entries, list) or None in names:
        raise SendingError("it lists no models", standing=Standing.SHAKY)
    return tuple(name for name in names if name is not None)


def _name(entry: JsonValue) -> str | None:
    name = entry.get("id") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None
