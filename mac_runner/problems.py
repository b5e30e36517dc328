"""Problems with the user's input: gathered, and reported together in plain words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from mac_runner.errors import ConfigError
from mac_runner.files import read_material
from mac_runner.printable import printable
from mac_runner.section import TEMPLATE_CHARS_MAX, KeyPath
from mac_runner.types import JsonValue

CONFIG_PROBLEMS_MAX: Final = 50
"""Problems listed in one error."""
CONFIG_FOUND_CHARS_MAX: Final = 80
"""What is quoted of a value."""
CONFIG_NAMES_MAX: Final = 40
"""Allowed names that are listed."""
CONFIG_LINE_CHARS_MAX: Final = 4_000
"""The longest line of an error."""


class Problem(NamedTuple):
    """One problem: its path and its description."""

    path: KeyPath
    text: str


class MaterialError(ConfigError):
    """A file that an experiment names cannot be used; `problems` have the keys that name it."""

    def __init__(self, path: KeyPath, text: str, *more: Problem) -> None:
        super().__init__(text, key=path)
        self.problems = (Problem(path, text), *more)


def read_named(path: Path, key: KeyPath) -> bytes:
    """The bytes of the file that `key` names. Raises MaterialError."""
    try:
        return read_material(path)
    except ConfigError as fault:
        raise MaterialError(key, str(fault)) from fault


def read_template(path: Path, key: KeyPath, given: str | None) -> str:
    """The text of a prompt template, which `given` beside the file must equal. Raises MaterialError."""
    try:
        text = read_named(path, key).decode("utf-8")
    except UnicodeDecodeError:
        raise MaterialError(key, f"{path} is not UTF-8; save it as UTF-8") from None
    if not 1 <= len(text) <= TEMPLATE_CHARS_MAX:
        raise MaterialError(key, f"{path} has {len(text)} characters, not 1 to {TEMPLATE_CHARS_MAX}")
    if given not in (None, text):
        raise MaterialError(key, "the key template has another text; leave it out, it is filled in from the file")
    return text


def config_error(lines: Iterable[str]) -> ConfigError:
    """One error that lists every problem, one per line, up to CONFIG_PROBLEMS_MAX; the rest are not looked for.

    Quotations from the file cannot break a line or act on a terminal.
    """
    taken = [printable(line[:CONFIG_LINE_CHARS_MAX]) for line in islice(lines, CONFIG_PROBLEMS_MAX + 1)]
    if len(taken) > CONFIG_PROBLEMS_MAX:
        taken[-1] = "... and more; mend these first"
    return ConfigError("\n".join(taken))


def dotted(path: KeyPath) -> str:
    """A path as `--set` takes it."""
    return ".".join(str(part) for part in path)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The known word that `word` is most like; None where it is like none."""
    return next(iter(get_close_matches(word[:CONFIG_FOUND_CHARS_MAX], known, n=1)), None)


def suggestion(word: str, known: Iterable[str]) -> str:
    """The allowed words in place of `word`, the nearest first; empty when there are none."""
    words = sorted(islice(known, CONFIG_NAMES_MAX))
    if not words:
        return ""
    near = nearest(word, words)
    hint = "" if near is None else f" (did you mean {near!r}?)"
    return f"; allowed: {', '.join(words)}{hint}"


def found(value: JsonValue) -> str:
    """The value that was found, short and harmless to print."""
    match value:
        case None:
            return "found nothing"
        case dict():
            return "found a mapping"
        case list():
            return "found a list" if value else "found an empty list"
        case str():
            return f"found the text {clipped(value)}"
        case _:
            return f"found {clipped(value)}"


def clipped(value: JsonValue) -> str:
    """A scalar as YAML would have it, on one line, cut short."""
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= CONFIG_FOUND_CHARS_MAX else f"{text[:CONFIG_FOUND_CHARS_MAX]}..."
