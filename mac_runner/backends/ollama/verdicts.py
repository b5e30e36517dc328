"""What went wrong at Ollama, as an error with a verdict.

What a status says stands in `statuses`; what Ollama says in the body takes precedence:

| what happened | what becomes of it |
|---|---|
| no connection, or one that broke; a gateway's 502, 503, 504 | asked again; the server counts as unreachable |
| 503 because its queue is full, or a 429 | asked again, however often: the server is there |
| 500 because the model's runner has ended | asked again; this request may be why it ended |
| an answer that is none: no JSON, wrong types | asked again |
| an error because the prompt is longer than the context | a reply with FinishReason.OVERFLOW |
| a model that the server, or the library it pulls from, does not have | nobody will be answered |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import ollama
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mac_runner.backends.complaint import Complaint, complaint_saying
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.statuses import Meaning, is_busy, meaning_of
from mac_runner.config import allowed
from mac_runner.errors import (
    NO_DESCRIPTORS,
    BackendError,
    EngineDeadError,
    RequestRefusedError,
    TransientBackendError,
    lacks_descriptors,
)

CUT_OFF: Final = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
"""What a connection raises that breaks in the middle."""
_NOT_FOUND: Final = 404
_BUSY: Final = "server busy"
_NO_MANIFEST: Final = "file does not exist"
"""What a pull of a model says that nobody has published."""
_RUNNER_ENDED: Final = ("model runner has unexpectedly stopped", "runner process has terminated")
_TOO_LONG: Final = re.compile(
    r"(?:exceed|longer than|too long|too large).*\bcontext\b(?! deadline| canceled)"
    r"|\bcontext[ _](?:length|size|window).*exceed"
)
"""What is said of a prompt that does not fit; a `context deadline exceeded` is Go's word for a timeout."""


class PromptTooLongError(RequestRefusedError):
    """The prompt does not fit the model's context. Never leaves the package."""


class DeniedError(EngineDeadError):
    """The server does not let us have what we ask for."""


class UnknownModelError(DeniedError):
    """The server has no such model."""


@contextmanager
def verdicts(host: str, redactor: Redactor) -> Iterator[None]:
    """Turn whatever the client raises inside the block into a BackendError.

    The client reads an answer without looking at it first, so a malformed one surfaces as whatever the reading of it
    trips over. Nothing but the client's own call belongs in the block.
    """
    try:
        yield
    except ollama.ResponseError as error:  # Told in the middle of a stream, after its status: `Wire` sees to that one.
        raise refusal(None, complaint_saying(str(error.error), redactor), host) from None
    except (ConnectionError, httpx.TransportError) as error:
        if lacks_descriptors(error):
            raise TransientBackendError(f"Ollama at {host}: {NO_DESCRIPTORS}", is_busy=True) from error
        text = f"no answer from Ollama at {host}: {_words(error, redactor)}"
        raise TransientBackendError(text, is_unreachable=True) from error
    except (httpx.HTTPError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise TransientBackendError(f"malformed answer from Ollama at {host}: {_words(error, redactor)}") from error


def refusal(status: int | None, complaint: Complaint, host: str, *, retry_after_s: float | None = None) -> BackendError:
    """The error for an answer that tells of one; `status` is None when it came in the middle of a stream."""
    quoted = complaint.quoted or "not a word"
    words = f"Ollama at {host}: {quoted}" if status is None else f"Ollama at {host}: status {status}: {quoted}"
    said = complaint.text
    meaning = Meaning.BROKEN if status is None else meaning_of(status)
    if _TOO_LONG.search(said) and meaning is not Meaning.GATEWAY:
        return PromptTooLongError(words)
    if status == _NOT_FOUND or _NO_MANIFEST in said:
        return UnknownModelError(words)
    if meaning is Meaning.DENIED:
        return DeniedError(words)
    if meaning is Meaning.REFUSED:
        return RequestRefusedError(words)
    return TransientBackendError(
        words,
        retry_after_s=retry_after_s,
        is_unreachable=meaning is Meaning.GATEWAY and _BUSY not in said,
        is_busy=_BUSY in said or is_busy(meaning, retry_after_s=retry_after_s),
        is_engine_death=any(mark in said for mark in _RUNNER_ENDED),
    )


def is_cut_off(error: TransientBackendError) -> bool:
    """Whether the connection broke while the server worked; whether the server died is for another question to tell."""
    return isinstance(error.__cause__, CUT_OFF)


def _words(error: Exception, redactor: Redactor) -> str:
    """The class of a foreign error, and what it says as far as it fits; some say nothing."""
    if isinstance(error, ValidationError):
        return redactor.quoted(f"an answer of another form: {_flaws(error)}")
    return redactor.quoted(f"{type(error).__name__}: {error}").rstrip(": ")


def _flaws(error: ValidationError) -> str:
    """Where an answer is wrong and how. By itself the error would quote it, with the middle of each value left out."""
    flaws = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, flaw['loc']))} is not {_wanted(flaw)}" for flaw in flaws)


def _wanted(flaw: ErrorDetails) -> str:
    if flaw["type"] == "missing":
        return "there"
    return allowed(flaw["type"], flaw.get("ctx", {})) or "of the right form"
