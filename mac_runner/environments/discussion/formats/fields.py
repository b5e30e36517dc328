"""The fields of a line of a release. Each raises ValueError: which key, what was found, what is allowed."""

from __future__ import annotations

from mac_runner.types import JsonObject


def text_field(line: JsonObject, key: str) -> str:
    """A text that is not empty. Raises ValueError for anything else."""
    value = line.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: found {value!r:.80}; allowed: a text that is not empty")
    return value


def word_field(line: JsonObject, key: str) -> str:
    """A number or a word; ages are released as numbers with a fraction of 0."""
    value = line.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).strip():
        raise ValueError(f"{key}: found {value!r}; allowed: a number or a word")
    return str(value).strip()
