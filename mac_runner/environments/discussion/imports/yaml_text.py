"""Plain values as YAML that a person goes on with: block style, and a comment above a key that wants a look."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from mac_runner.config.document import plain_scalar
from mac_runner.section import KeyPath
from mac_runner.types import JsonObject, JsonValue

_BARE: Final = re.compile(r"[A-Za-z_.][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)*")
_LINE_CHARS_MAX: Final = 100


def yaml_text(value: JsonObject, comments: Mapping[KeyPath, str]) -> str:
    """The YAML of a mapping; a blank line parts its sections."""
    lines = list(_entries(value, (), comments))
    for place in range(len(lines) - 1, 0, -1):
        begins = lines[place][:1] not in (" ", "-") and not lines[place - 1].startswith("#")
        if begins:
            lines.insert(place, "")
    return "".join(f"{line}\n" for line in lines)


def _entries(value: JsonObject, path: KeyPath, comments: Mapping[KeyPath, str]) -> Iterator[str]:
    for key, entry in value.items():
        here = (*path, key)
        if (comment := comments.get(here)) is not None:
            yield f"# {comment}"
        yield from _after(f"{scalar(key)}:", entry, here, comments)


def _after(head: str, value: JsonValue, path: KeyPath, comments: Mapping[KeyPath, str]) -> Iterator[str]:
    """The lines of a value behind `head`, on the same line where it fits."""
    if (flow := _flow(value)) is not None and len(head) + len(flow) < _LINE_CHARS_MAX:
        yield f"{head} {flow}"
    elif isinstance(value, dict):
        yield head
        yield from (f"  {line}" for line in _entries(value, path, comments))
    elif isinstance(value, list):
        yield head
        yield from (f"  {line}" for line in _items(value, path, comments))
    else:
        yield f"{head} {scalar(value)}"


def _items(value: list[JsonValue], path: KeyPath, comments: Mapping[KeyPath, str]) -> Iterator[str]:
    for place, entry in enumerate(value):
        here = (*path, place)
        if isinstance(entry, dict) and entry:
            for number, line in enumerate(_entries(entry, here, comments)):
                yield f"{'  ' if number else '- '}{line}"
        else:
            yield from _after("-", entry, here, comments)


def _flow(value: JsonValue) -> str | None:
    """A value on one line, if it is a scalar, empty, or a list of scalars."""
    if isinstance(value, dict):
        return None if value else "{}"
    if isinstance(value, list):
        if any(isinstance(entry, dict | list) for entry in value):
            return None
        return f"[{', '.join(map(scalar, value))}]"
    return scalar(value)


def scalar(value: JsonValue) -> str:
    """A scalar as the reader of experiment files takes it; a text is quoted where it could be read as another value."""
    if not isinstance(value, str):
        return json.dumps(value)
    if _BARE.fullmatch(value) and _is_text(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escaped(char) for char in quoted)


def _is_text(value: str) -> bool:
    try:
        return plain_scalar(value) == value
    except ValueError:
        return False


def _escaped(char: str) -> str:
    return f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
