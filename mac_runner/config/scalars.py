"""What an unquoted YAML scalar means: the core schema of YAML 1.2, and a refusal wherever YAML 1.1 read it otherwise.

`no`, `012`, `12:30` and `1_000` are a word, a number and a time to one reader and False, 10, 750 and 1000 to
another. None of them is guessed at: whoever wrote one is asked to quote it or to write the number out.
"""

from __future__ import annotations

import math
import re
from typing import Final

NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
TRUES: Final = frozenset({"true", "True", "TRUE"})
FALSES: Final = frozenset({"false", "False", "FALSE"})
INTEGER_DIGITS_MAX: Final = 18
SPECIAL_CHARS_MAX: Final = 64
"""A longer scalar is a text and is not looked at any further."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SWITCH = re.compile(r"y|n|yes|no|on|off", re.IGNORECASE)
_OTHER_BASE = re.compile(r"[-+]?0[0-9]+|[-+]?0[xob][0-9a-fA-F_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_UNDERSCORED = re.compile(r"[-+]?(?=[0-9._]*_)[0-9][0-9_]*(\.[0-9_]*)?")
_NOT_FINITE = re.compile(r"[-+]?\.inf|\.nan", re.IGNORECASE)


def plain_scalar(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar. Raises ValueError, saying what to write instead, for an ambiguous one."""
    if len(text) > SPECIAL_CHARS_MAX:
        return text
    if text in NULLS:
        return None
    if text in TRUES:
        return True
    if text in FALSES:
        return False
    if trap := _trap(text):
        raise ValueError(trap)
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def _trap(text: str) -> str | None:
    """Why this scalar is refused, or None."""
    if _SWITCH.fullmatch(text):
        return "is ambiguous: write true or false, or quote it if a text is meant"
    if _OTHER_BASE.fullmatch(text):
        return "is ambiguous: write a decimal number without leading zeros, or quote it if a text is meant"
    if _SEXAGESIMAL.fullmatch(text):
        return "is ambiguous: quote it if a time is meant, or write one number"
    if _UNDERSCORED.fullmatch(text):
        return "is ambiguous: write the number without '_', or quote it if a text is meant"
    if _INTEGER.fullmatch(text) and len(text.lstrip("+-")) > INTEGER_DIGITS_MAX:
        return f"has too many digits: at most {INTEGER_DIGITS_MAX}, or quote it if a text is meant"
    if _NOT_FINITE.fullmatch(text) or (_FLOAT.fullmatch(text) and not math.isfinite(float(text))):
        return "is no finite number"
    return None
