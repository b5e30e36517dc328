"""What went wrong at Ollama, as an error with a verdict.

`http_errors` has the table of statuses, `refusals` that of what refusals mean. What else Ollama says in the body takes
precedence:

| what happened | what follows |
|---|---|
| no connection, or one that broke; a gateway's 502, 503, 504 | sent again; the server counts as unreachable |
| 503 because its queue is full, or a 429 | sent again, however often: the server is there |
| 500 because the model's runner has ended | sent again; this request may be why it ended |
| an answer that cannot be read: not JSON, wrong types | sent again; the server works |
| a model that the server, or the library it pulls from, does not have | the run ends: it answers no request |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mac_runner.backends.http_errors import ErrorBody, Meaning, error_body_saying, is_busy, meaning_of
from mac_runner.backends.ollama.client import ollama
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.refusals import AnsweredError, Refusal, refusal_of, reply_to, roles_refused
from mac_runner.config import allowed
from mac_runner.errors import (
    NO_DESCRIPTORS,
    BackendError,
    EngineDeadError,
    FormRefusedError,
    RequestRefusedError,
    TransientBackendError,
    lacks_descriptors,
)

CUT_OFF: Final = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
"""The errors of a connection that breaks in the middle."""
_NOT_FOUND: Final = 404
_BUSY: Final = "server busy"
_NO_MANIFEST: Final = "file does not exist"
"""What a pull says for a model that is not published."""
_RUNNER_ENDED: Final = ("model runner has unexpectedly stopped", "runner process has terminated")


class DeniedError(EngineDeadError):
    """The server denies us what we ask for."""


class UnknownModelError(DeniedError):
    """The server has no such model."""


@contextmanager
def verdicts(host: str, redactor: Redactor) -> Iterator[None]:
    """Turn everything that the client raises inside the block into a BackendError.

    The client reads an answer without checking it first, so a malformed one surfaces as any error of the reading.
    Nothing but the client's own call belongs in the block.
    """
    try:
        yield
    except ollama.ResponseError as error:  # In the middle of a stream; `Transport` handles the others.
        raise refusal(None, error_body_saying(str(error.error), redactor), host) from None
    except (ConnectionError, httpx.TransportError) as error:
        if lacks_descriptors(error):
            raise TransientBackendError(f"Ollama at {host}: {NO_DESCRIPTORS}", is_busy=True) from error
        text = f"no answer from Ollama at {host}: {_words(error, redactor)}"
        raise TransientBackendError(text, is_unreachable=True) from error
    except (httpx.HTTPError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        text = f"malformed answer from Ollama at {host}: {_words(error, redactor)}"
        raise TransientBackendError(text, has_answered=True) from error


def refusal(status: int | None, error: ErrorBody, host: str, *, retry_after_s: float | None = None) -> BackendError:
    """The error for an answer with one; `status` is None when it came in the middle of a stream."""
    quoted = error.quoted or "no message"
    words = f"Ollama at {host}: {quoted}" if status is None else f"Ollama at {host}: status {status}: {quoted}"
    text = error.text
    meaning, refused = Meaning.BROKEN if status is None else meaning_of(status), refusal_of(status, error)
    if (reply := reply_to(refused, error)) is not None:
        return AnsweredError(words, reply)
    if (roles := roles_refused(refused, words)) is not None:
        return roles
    if status == _NOT_FOUND or _NO_MANIFEST in text:
        return UnknownModelError(words)
    if refused is Refusal.FORM:
        return FormRefusedError(words)
    if meaning is Meaning.DENIED:
        return DeniedError(words)
    if meaning is Meaning.REFUSED:
        return RequestRefusedError(words)
    return TransientBackendError(
        words,
        retry_after_s=retry_after_s,
        is_unreachable=meaning is Meaning.GATEWAY and _BUSY not in text,
        is_busy=_BUSY in text or is_busy(meaning, retry_after_s=retry_after_s),
        is_engine_death=any(mark in text for mark in _RUNNER_ENDED),
    )


def is_cut_off(error: TransientBackendError) -> bool:
    """Whether the connection broke while the server worked. Whether the server died, only another request shows."""
    return isinstance(error.__cause__, CUT_OFF)


def _words(error: Exception, redactor: Redactor) -> str:
    """The class of a library's error and its text, as far as it fits; some have no text."""
    if isinstance(error, ValidationError):
        return redactor.quoted(f"an answer of another form: {_flaws(error)}")
    return redactor.quoted(f"{type(error).__name__}: {error}").rstrip(": ")


def _flaws(error: ValidationError) -> str:
    """Where an answer is wrong and how, without quoting it as the error itself would."""
    flaws = error.errors(include_url=False, include_input=False)
    return "; ".join(f"{'.'.join(map(str, flaw['loc']))} is not {_wanted(flaw)}" for flaw in flaws)


def _wanted(flaw: ErrorDetails) -> str:
    if flaw["type"] == "missing":
        return "there"
    return allowed(flaw["type"], flaw.get("ctx", {})) or "of the right form"
