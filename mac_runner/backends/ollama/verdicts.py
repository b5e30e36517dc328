"""What went wrong at Ollama, as an error with a verdict.

| what happened | what becomes of it |
|---|---|
| no connection, or one that broke; 502, 503, 504 | asked again; the server counts as unreachable |
| 500 because the model's runner has ended | asked again; this request may be why it ended |
| 503 because its queue is full; 408, 429, other 5xx | asked again, after Retry-After where it is given |
| an answer that is none: no JSON, wrong types | asked again |
| 400 and the like because the prompt is longer than the context | a reply with FinishReason.OVERFLOW |
| 404 (no such model); 401, 402, 403 | nobody will be answered: the run stops |
| any other 4xx | this request is refused for good |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import httpx
import ollama

from mac_runner.backends.foreign import clipped
from mac_runner.errors import BackendError, EngineDeadError, RequestRefusedError, TransientBackendError

_NOT_FOUND: Final = 404
_GATEWAY: Final = frozenset({502, 503, 504})
_DENIED: Final = frozenset({401, 402, 403})
_AGAIN: Final = frozenset({408, 429})
_BUSY: Final = "server busy"
_NO_MANIFEST: Final = "file does not exist"
"""What a pull of a model says that nobody has published."""
_RUNNER_ENDED: Final = ("model runner has unexpectedly stopped", "runner process has terminated")
_TOO_LONG: Final = ("exceed", "longer than", "too long", "too large")


class PromptTooLongError(RequestRefusedError):
    """The prompt does not fit the model's context. Never leaves the package."""


class UnknownModelError(EngineDeadError):
    """The server has no such model."""


@contextmanager
def verdicts(host: str) -> Iterator[None]:
    """Turn whatever the client raises inside the block into a BackendError.

    The client reads an answer without looking at it first, so a malformed one surfaces as whatever the reading of it
    trips over. Nothing but the client's own call belongs in the block.
    """
    try:
        yield
    except ollama.ResponseError as error:
        raise _refusal(error.status_code, clipped(str(error.error)), host) from None
    except (ConnectionError, httpx.TransportError) as error:
        text = f"no answer from Ollama at {host}: {_words(error)}"
        raise TransientBackendError(text, is_unreachable=True) from error
    except (httpx.HTTPError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise TransientBackendError(f"malformed answer from Ollama at {host}: {_words(error)}") from error


def _refusal(status: int, text: str, host: str) -> BackendError:
    words = f"Ollama at {host}: {text} (status {status})" if status > 0 else f"Ollama at {host}: {text}"
    if "context" in text and any(mark in text for mark in _TOO_LONG) and status not in _GATEWAY:
        return PromptTooLongError(words)
    if status == _NOT_FOUND or _NO_MANIFEST in text:
        return UnknownModelError(words)
    if status in _DENIED:
        return EngineDeadError(words)
    if 400 <= status < 500 and status not in _AGAIN:
        return RequestRefusedError(words)
    return TransientBackendError(
        words,
        is_unreachable=status in _GATEWAY and _BUSY not in text,
        is_engine_death=any(mark in text for mark in _RUNNER_ENDED),
    )


def is_cut_off(error: TransientBackendError) -> bool:
    """Whether the connection broke while the server worked; whether the server died is for another question to tell."""
    return isinstance(error.__cause__, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)


def _words(error: Exception) -> str:
    """The class of a foreign error, and what it says as far as it fits; some say nothing."""
    return clipped(f"{type(error).__name__}: {error}").rstrip(": ")
