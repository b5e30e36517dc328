"""A refusal as an answer, in the words of the interface that the path belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Scope

from mac_runner.nano.server import ollama_replies, openai_replies
from mac_runner.nano.server.refusals import Refusal
from mac_runner.nano.server.wire import answer

_OLLAMA_PREFIX: Final = "/api/"
_UNAUTHORIZED: Final = 401


def refusal_answer(scope: Scope, refusal: Refusal) -> Response:
    """The answer to the request in `scope`."""
    write: Callable[[Refusal], dict[str, object]] = openai_replies.error_body
    if scope["path"].startswith(_OLLAMA_PREFIX):
        write = ollama_replies.error_body
    return answer(write(refusal), status=refusal.status, headers=_headers(scope, refusal))


def _headers(scope: Scope, refusal: Refusal) -> dict[str, str]:
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if refusal.status == _UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    # A client that was waiting for leave to send its body may send it or not: where the next request begins is unknown.
    if refusal.hangs_up or "expect" in Headers(scope=scope):
        headers["Connection"] = "close"
    return headers
