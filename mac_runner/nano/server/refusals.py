"""What the server refuses, as a status and words that both protocols are written from. Pure.

| what happened | status |
|---|---|
| a body that is no JSON, a field that is unknown or out of range, a constraint that cannot be followed | 400 |
| a prompt that does not fit the context | 400, `context_length_exceeded` |
| a wrong key, none where one is needed | 401 |
| a path or a model that is not here | 404 |
| a body that does not arrive, or is too large | 408, 413 |
| the bodies of all requests together take up the memory kept for them | 503, `server_busy`, with Retry-After |
| as many requests waiting as may wait | 429 with Retry-After |
| the model computed no numbers | 500 |
| an engine that has stopped, or gave the request up | 503 |
"""

from __future__ import annotations

from dataclasses import dataclass

from mac_runner.nano.errors import (
    ConfigError,
    EngineStoppedError,
    ModelError,
    NanoError,
    NonFiniteLogitsError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
)
from mac_runner.nano.server.limits import QUOTED_CHARS_MAX, RETRY_AFTER_S

INTERNAL_ERROR_STATUS = 500
CLIENT_GONE_STATUS = 499
"""Nobody reads it; it is what proxies count a client as who left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a request is not served. `kind` and `code` are words of OpenAI's, `field` what in the request is at fault.

    With `hangs_up` the connection is closed after the answer: what follows on it cannot be told from the body.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    code: str | None = None
    field: str | None = None
    retry_after_s: int | None = None
    hangs_up: bool = False


class RefusedError(NanoError):
    """A request that the server does not hand on to the engine."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class ClientGoneError(NanoError):
    """The client has left; there is nobody to tell."""


def refusal_of(error: NanoError) -> Refusal:
    """What a client is told of an error."""
    message = shortened(str(error))
    match error:
        case RefusedError():
            return error.refusal
        case ClientGoneError():
            return Refusal(status=CLIENT_GONE_STATUS, message=message, kind="client_gone")
        case QueueFullError():
            return Refusal(
                status=429,
                message=message,
                kind="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after_s=RETRY_AFTER_S,
            )
        case PromptTooLongError():
            message = f"the request exceeds the context: {message}"
            return Refusal(status=400, message=message, code="context_length_exceeded")
        case NonFiniteLogitsError():
            return Refusal(status=500, message=message, kind="server_error", code="non_finite_logits")
        case EngineStoppedError():
            return Refusal(status=503, message=message, kind="server_error", code="engine_stopped")
        case RequestError() | ModelError() | ConfigError():
            return Refusal(status=400, message=message)
        case _:
            return Refusal(status=500, message=message, kind="server_error")


def shortened(message: str) -> str:
    """A message, cut where it quotes more than QUOTED_CHARS_MAX of a client's words back at it."""
    return message if len(message) <= QUOTED_CHARS_MAX else f"{message[: QUOTED_CHARS_MAX - 1]}…"


def unknown_model(name: str) -> RefusedError:
    """No such model; the words are those that clients of Ollama look for."""
    said = name[:QUOTED_CHARS_MAX]
    return RefusedError(
        Refusal(
            status=404,
            message=f"model {said!r} not found",
            kind="not_found_error",
            code="model_not_found",
            field="model",
        )
    )


def invalid(message: str, field: str | None = None) -> RefusedError:
    """A request that makes no sense, or asks for what is not there."""
    return RefusedError(Refusal(status=400, message=message, field=field))


def given_up(reason: str) -> RefusedError:
    """A request that the engine ended before it was finished."""
    message = f"the request was ended before it was finished: {reason}"
    return RefusedError(Refusal(status=503, message=message, kind="server_error", code="aborted"))
