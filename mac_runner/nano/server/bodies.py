"""Bytes from a client → a checked request. Pure: every way in which they can be wrong is a RefusedError."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from mac_runner.nano.server.limits import QUOTED_CHARS_MAX
from mac_runner.nano.server.refusals import RefusedError, invalid

PROBLEMS_TOLD_MAX = 3


class Body(BaseModel):
    """A JSON object from a client. Types are taken literally; an unknown field would be dropped, so it is refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


Parsed = TypeVar("Parsed", bound=Body)


def parse_body(kind: type[Parsed], content: bytes) -> Parsed:
    """The request in `content`. Raises RefusedError, which names the fields at fault."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise _told(error) from None


def require_absent(body: Body, *names: str) -> None:
    """Refuse fields that the protocol has and this server cannot honour, unless they ask for nothing."""
    for name in names:
        if getattr(body, name):
            raise invalid(f"{name} is not supported by this server: leave it out", name)


def _told(error: ValidationError) -> RefusedError:
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    places = [".".join(str(part) for part in problem["loc"])[:QUOTED_CHARS_MAX] for problem in problems]
    said = [str(problem["msg"])[:QUOTED_CHARS_MAX] for problem in problems]
    told = [f"{place}: {words}" if place else words for place, words in zip(places, said, strict=True)]
    more = f" (and {len(told) - PROBLEMS_TOLD_MAX} more)" if len(told) > PROBLEMS_TOLD_MAX else ""
    return invalid("; ".join(told[:PROBLEMS_TOLD_MAX]) + more, places[0] or None)
