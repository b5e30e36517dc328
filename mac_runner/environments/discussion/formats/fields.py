"""Reading a field of somebody else's format."""

from __future__ import annotations

from mac_runner.types import JsonObject


def text_field(line: JsonObject, key: str) -> str:
    """A text that is not empty. Raises ValueError for anything else."""
    value = line.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key}: found {value!r:.80}; allowed: a text that is not empty")
    return value
