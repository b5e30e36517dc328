"""The body of a request: read within bounds, then checked. Every way to be wrong is a RefusedError."""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import Executor
from typing import Annotated, TypeAlias, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import ClientDisconnect

from mac_runner.nano.server.answers import QUOTED_CHARS_MAX, ClientGoneError, Refusal, RefusedError, invalid

BODY_S_MAX = 60.0
"""How long a body may take to arrive."""
BODY_BYTES_AT_ONCE_MAX = 64 << 10
"""A longer body is parsed on a thread, one at a time."""
JSON_PARTS_MAX = 100_000
"""Arrays and objects in one body. Each takes some hundred bytes to parse, so 8 MiB of them would take 1.4 GB."""
MESSAGES_MAX = 10_000
TOP_LOGPROBS_MAX = 20
PROBLEMS_NAMED_MAX = 3
PROBLEMS_LISTED_MAX = 1_000
"""More are only counted: it takes long to list millions."""

# Strings are skipped whole; the last one may lack its end. Possessive, so each byte is looked at once.
_STRING_OR_PART = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]', re.DOTALL)
_QUOTE = ord('"')
_NO_JSON = (b"NaN", b"Infinity")

Item = TypeVar("Item")
Many: TypeAlias = Annotated[tuple[Item, ...], Field(fail_fast=True)]
"""An array in a request. The first wrong item ends its check: there may be millions."""


class Body(BaseModel):
    """A JSON object from a client. Types are strict; an unknown field would be dropped, so it is refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


Parsed = TypeVar("Parsed", bound=Body)


async def read_request(kind: type[Parsed], request: Request, thread: Executor) -> Parsed:
    """The body of a request, checked. Its content type does not matter, because many clients send a wrong one.

    Long bodies are parsed on `thread`, one after the other: while it is parsed, JSON takes many times its bytes.
    """
    content = await read_bytes(request)
    if len(content) <= BODY_BYTES_AT_ONCE_MAX:
        return parse_body(kind, content)
    return await asyncio.get_running_loop().run_in_executor(thread, parse_body, kind, content)


async def read_bytes(request: Request) -> bytes:
    """The body of a request. Raises RefusedError when it is too large or does not arrive."""
    # One buffer: chunks of one byte would take forty times as much as objects of their own.
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for chunk in request.stream():
                content += chunk
    except TimeoutError:
        message = f"no whole body within {BODY_S_MAX:.0f} s"
        raise RefusedError(Refusal(status=408, message=message, hangs_up=True)) from None
    except ClientDisconnect:
        raise ClientGoneError("the client left in the middle of its request") from None
    return bytes(content)


def parse_body(kind: type[Parsed], content: bytes) -> Parsed:
    """The request in `content`. Raises RefusedError, which names the wrong fields."""
    _require_few_parts(content)
    try:
        parsed = kind.model_validate_json(content)
    except ValidationError as error:
        raise _refused(error, content) from None
    if any(name in content for name in _NO_JSON):
        # Where a field may be any JSON, the validator takes them for numbers.
        try:
            from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise invalid(f"the body is not JSON: {error}") from None
    return parsed


def require_absent(body: Body, *names: str) -> None:
    """Refuse fields of the protocol that this server does not support, unless they ask for nothing."""
    for name in names:
        if getattr(body, name):
            raise invalid(f"{name} is not supported by this server: leave it out", name)


def _require_few_parts(content: bytes) -> None:
    """Raise RefusedError for more than JSON_PARTS_MAX arrays and objects. A short body has room for few."""
    if len(content) <= BODY_BYTES_AT_ONCE_MAX or content.count(b"[") + content.count(b"{") <= JSON_PARTS_MAX:
        return
    num_parts = 0
    for match in _STRING_OR_PART.finditer(content):
        num_parts += content[match.start()] != _QUOTE
        if num_parts > JSON_PARTS_MAX:
            raise invalid(f"the body has more than {JSON_PARTS_MAX} arrays and objects")


def _refused(error: ValidationError, content: bytes) -> RefusedError:
    if error.error_count() > PROBLEMS_LISTED_MAX:
        return invalid(f"{error.error_count()} fields are wrong or unknown")
    problems, sent = error.errors(include_url=False, include_context=False, include_input=False), _sent(content)
    places = [_place(problem, sent)[:QUOTED_CHARS_MAX] for problem in problems]
    messages = [str(problem["msg"])[:QUOTED_CHARS_MAX] for problem in problems]
    # A field that may be of several kinds has one problem for each, at times with the same message.
    named = list(
        dict.fromkeys(f"{place}: {text}" if place else text for place, text in zip(places, messages, strict=True))
    )
    more = f" (and {len(named) - PROBLEMS_NAMED_MAX} more)" if len(named) > PROBLEMS_NAMED_MAX else ""
    return invalid("; ".join(named[:PROBLEMS_NAMED_MAX]) + more, places[0] or None)


def _sent(content: bytes) -> object:
    """The client's JSON; None where it is not JSON."""
    try:
        return from_json(content)
    except ValueError:
        return None


def _place(problem: ErrorDetails, sent: object) -> str:
    """Where in the request: the validator's path without the names of the kinds that it tried on the way."""
    steps = list[str]()
    for part in problem["loc"]:
        is_there = part in sent if isinstance(sent, dict) else isinstance(sent, list) and isinstance(part, int)
        if is_there or (problem["type"] == "missing" and part == problem["loc"][-1]):
            steps.append(str(part))
            sent = sent[part] if is_there else None  # type: ignore[index]
    return ".".join(steps)
