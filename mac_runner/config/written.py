"""Experiments that are written in Python, and experiments as YAML text.

A value of Python is taken as YAML would give it: texts, numbers, booleans, None, lists and mappings. What YAML cannot
hold is refused with its place, so that an experiment can always be written to a file and be played from there.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from mac_runner.config.document import INTEGER_DIGITS_MAX, YAML_DEPTH_MAX, YAML_NODES_MAX, Document, plain_scalar
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem, config_error, dotted
from mac_runner.section import KeyPath
from mac_runner.types import JsonObject, JsonValue

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_MAIN: Final = "__main__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The content of an experiment file: read from one, or written in Python."""

    value: JsonValue
    base: Path
    """The folder that paths in it start from."""
    name: str = "experiment"
    """What messages call it."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """The line of each value, where it was read from a file."""

    @property
    def document(self) -> Document:
        """The content as a parsed document."""
        return Document(value=self.value, lines=self.lines)

    def __str__(self) -> str:
        return self.name


def plain_value(content: Mapping[str, object], name: str = "experiment") -> JsonObject:
    """`content` as a file would hold it. Raises ConfigError with every value that no file can hold.

    Tuples become lists, and an object that a module defines becomes `module:name`.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: found a {type(content).__name__}; an experiment is a mapping of sections")
    reader = _Reader()
    value = reader.read(content, ())
    if reader.problems:
        raise config_error(": ".join(filter(None, (name, dotted(path), text))) for path, text in reader.problems)
    assert isinstance(value, dict)
    return value


class Override(NamedTuple):
    """A value of `--set` that was written in Python."""

    key: str
    """The dotted path."""
    value: JsonValue


def override(key: str, value: object) -> Override:
    """The value that Python code sets for a dotted key. Raises ConfigError for one that no file can hold."""
    return Override(key, plain_value({key: value}, "set")[key])


def yaml_text(value: JsonObject) -> str:
    """A value as YAML that reads back as the same value."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


class _Reader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._values = 0

    def read(self, value: object, path: KeyPath) -> JsonValue:
        self._values += 1
        if len(path) > YAML_DEPTH_MAX or self._values > YAML_NODES_MAX:
            bound = f"{YAML_DEPTH_MAX} levels" if len(path) > YAML_DEPTH_MAX else f"{YAML_NODES_MAX} values"
            raise ConfigError(f"{dotted(path[:3])}: more than {bound}; write fewer")
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple):
            return [self.read(entry, (*path, index)) for index, entry in enumerate(value)]
        try:
            return _scalar(value)
        except ValueError as fault:
            self.problems.append(Problem(path, str(fault)))
            return None

    def _mapping(self, value: Mapping[object, object], path: KeyPath) -> JsonObject:
        found: JsonObject = {}
        for key, entry in value.items():
            if isinstance(key, str) and not _SURROGATE.search(key):
                found[key] = self.read(entry, (*path, key))
            else:
                self.problems.append(Problem(path, f"the key {key!r} is not a text; keys are texts"))
        return found


def _scalar(value: object) -> JsonValue:
    """The value as YAML has it. Raises ValueError, saying what to write instead, for one that YAML cannot hold."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if len(str(abs(value))) > INTEGER_DIGITS_MAX:
            raise ValueError(f"has too many digits: at most {INTEGER_DIGITS_MAX}")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is not a finite number")
        return float(value)
    if isinstance(value, str):
        if _SURROGATE.search(value):
            raise ValueError("half a surrogate pair is not a character; remove it")
        return str(value)
    if isinstance(value, Path):
        return str(value)
    return _name_of(value)


def _name_of(value: object) -> str:
    """`module:name` of an object that a module defines. Raises ValueError for any other."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError(
            f"found a {type(value).__name__}; write a text, a number, true or false, None, a list or a mapping"
        )
    if module == _MAIN and name.isidentifier():
        raise ValueError(
            f"{name} is defined in a script or a notebook, where a resume cannot find it again; write it to a file "
            f"(in a notebook: %%writefile {name.lower()}.py) and name it: './{name.lower()}.py:{name}'"
        )
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        raise ValueError(
            f"{name} cannot be found again as {module}:{name}; define it at the top level of a module and name it"
        )
    return f"{module}:{name}"


class _Dumper(yaml.SafeDumper):
    """Quotes what the reader of experiment files would take for something else, and writes no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Write a value out wherever it occurs."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if not _is_plain(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _is_plain(text: str) -> bool:
    """Whether the text may be written without quotes, as far as its meaning is concerned."""
    if not text.replace("\n", "").isprintable():
        return False
    try:
        return plain_scalar(text) == text and text != "<<"
    except ValueError:
        return False


_Dumper.add_representer(str, _text)
