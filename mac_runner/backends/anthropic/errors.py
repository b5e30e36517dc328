"""What went wrong at Anthropic's API, as an error with a verdict.

`http_errors` has the table of statuses, `refusals` that of what refusals mean. What else the API says takes precedence:

| what happened | what follows |
|---|---|
| no connection, or one that broke; 502, 503, 504 | sent again; the API counts as unreachable |
| 429 for a rate limit, 529 for overload | sent again, however often, after the pause it asks for |
| 500 | sent again |
| 400 in words that are not known | the conversation fails, unless every request with its settings would |
| 400 because the account has no credit left; 401, 402, 403, 404 | the run stops if a single word is denied too |
| an error inside an answer with status 200 | as with the status of its type, for this request alone |
| an answer with status 200 that is no reply | sent again; the API works |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx2

from mac_runner.backends.anthropic.client import anthropic
from mac_runner.backends.http_errors import ErrorBody, Meaning, is_busy, meaning_of
from mac_runner.backends.redaction import Redactor
from mac_runner.backends.refusals import AnsweredError, Refusal, refusal_of, reply_to, roles_refused, worth_trying
from mac_runner.errors import (
    NO_DESCRIPTORS,
    BackendError,
    EngineDeadError,
    FormRefusedError,
    MacRunnerError,
    RequestRefusedError,
    TransientBackendError,
    lacks_descriptors,
)

BROKEN: Final = (httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)
"""The errors of a connection that breaks in the middle."""
_NOT_FOUND: Final = 404
_NO_CREDIT: Final = re.compile(r"credit balance is too low|reached your specified (?:\w+ )?usage limit")
_STATUSES: Final = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": _NOT_FOUND,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class UnusableReplyError(RequestRefusedError):
    """The API has answered, with what stays no reply: that is this request's alone, so no canary is sent."""


class DeniedError(EngineDeadError):
    """The API denies us what we ask for."""


class UnknownModelError(DeniedError):
    """The API has no such model, or no such path."""


@contextmanager
def verdicts(url: str, redactor: Redactor) -> Iterator[None]:
    """Turn everything that the client raises inside the block into a BackendError.

    Answers with an error raise one already, inside the client. Nothing but the client's own call belongs in the block.
    """
    try:
        yield
    except anthropic.APIConnectionError as error:
        fault = error.__cause__ or error
        if isinstance(fault, MacRunnerError):
            raise fault from None
        if lacks_descriptors(fault):
            raise TransientBackendError(f"{url}: {NO_DESCRIPTORS}", is_busy=True) from error
        words = redactor.quoted(f"{type(fault).__name__}: {fault}").rstrip(": ")
        raise TransientBackendError(f"no answer from {url}: {words}", is_unreachable=True) from error
    except (anthropic.AnthropicError, httpx2.HTTPError, ValueError, TypeError, LookupError, RecursionError) as error:
        words = redactor.quoted(f"{type(error).__name__}: {error}")
        raise TransientBackendError(f"malformed answer from {url}: {words}", has_answered=True) from error


def refusal(status: int, error: ErrorBody, url: str, *, retry_after_s: float | None = None) -> BackendError:
    """The error for an answer with one."""
    words = f"{url}: status {status}: {error.quoted or 'no message'}"
    meaning, refused = meaning_of(status), refusal_of(status, error)
    if (reply := reply_to(refused, error)) is not None:
        return AnsweredError(words, reply)
    if (roles := roles_refused(refused, words)) is not None:
        return roles
    if meaning is Meaning.REFUSED and _NO_CREDIT.search(error.text):
        return DeniedError(words)
    if refused is Refusal.FORM and status != _NOT_FOUND:
        return FormRefusedError(words)
    if meaning is Meaning.DENIED:
        return UnknownModelError(words) if status == _NOT_FOUND else DeniedError(words)
    if meaning is Meaning.REFUSED:
        return RequestRefusedError(words + worth_trying("another api_version"))
    return TransientBackendError(
        words,
        retry_after_s=retry_after_s,
        is_unreachable=meaning is Meaning.GATEWAY,
        is_busy=is_busy(meaning, retry_after_s=retry_after_s),
    )


def status_inside(error: ErrorBody) -> int:
    """The status for an error that came with status 200."""
    return error.status or next((status for kind, status in _STATUSES.items() if kind in error.codes), 500)
