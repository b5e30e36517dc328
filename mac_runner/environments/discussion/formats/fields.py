"""The fields of a line of a release, and the words of what a question keeps of them as its metadata."""

from __future__ import annotations

from typing import Final

from mac_runner.types import JsonObject, JsonValue

WORD_CHARS_MAX: Final = 200
"""What an outcome keeps of a word of the metadata."""


def text_field(line: JsonObject, key: str) -> str:
    """A text that is not empty. Raises ValueError for anything else."""
    value = line.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: found {value!r:.80}; allowed: a text that is not empty")
    return value


def word_field(line: JsonObject, key: str) -> str:
    """A number or a word. Raises ValueError for anything else."""
    if (word := word_of(value := line.get(key))) is None:
        raise ValueError(f"{key}: found {value!r}; allowed: a number or a word")
    return word


def word_of(value: JsonValue) -> str | None:
    """A word or a number as one word; an age of 20.0 is 20."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return str(value).strip()[:WORD_CHARS_MAX] or None
    except ValueError:  # A number of too many digits.
        return None
