"""Why a reply cannot be used: the cause, to be counted, and the reason, to be told to who wrote it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """What was wrong with a reply. A thought may have been left open by its writer, or by the limit on tokens."""

    EMPTY = "empty"
    OPEN_THOUGHT = "open_thought"
    CUT_OFF_THOUGHT = "cut_off_thought"
    CUT_OFF = "cut_off"
    NO_OBJECT = "no_object"
    MISSING = "missing"
    AMBIGUOUS = "ambiguous"
    NEGATED = "negated"
    UNMATCHED = "unmatched"
    NO_CHALLENGE = "no_challenge"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reply, or a part of it, says nothing that can be used."""

    cause: Cause
    reason: str
