"""What an experiment file holds, as plain values with the line of each: read from YAML, written in Python, or dumped.

The parser reads the stream of YAML events and builds only null, bool, int, float, str, list and dict. It checks size,
depth and the number of nodes (an alias counts for everything it expands to) while events come in, so a hostile file is
refused before it costs anything. What YAML cannot hold is refused in Python too, so that an experiment can always be
written to a file and be played from there.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    NodeEvent,
    ScalarEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from mac_runner.errors import ConfigError
from mac_runner.problems import CONFIG_PROBLEMS_MAX, Problem, clipped, config_error, dotted
from mac_runner.section import KeyPath
from mac_runner.types import JsonObject, JsonValue

YAML_SIZE_BYTES_MAX: Final = 1 << 20
"""The largest experiment file."""
YAML_NODES_MAX: Final = 10_000
"""Nodes of a file, with every alias expanded."""
YAML_DEPTH_MAX: Final = 32
"""How deep values may nest."""
_TOO_DEEP: Final = f"nested deeper than {YAML_DEPTH_MAX} levels; close what was left open, or nest less"

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_UNPRINTABLE: Final = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The content of an experiment file: read from one, or written in Python."""

    value: JsonValue
    base: Path = field(default_factory=Path)
    """The folder that paths in it start from."""
    name: str = "experiment"
    """What messages call it."""
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """The line of each value, where it was read from a file."""

    def __str__(self) -> str:
        return self.name


def parse_document(data: bytes, source: str) -> Written:
    """Parse one YAML document. Raises ConfigError with every problem as `source:line: …`."""
    text = _decoded(data, source)
    reader = _Reader(source, _events(text))
    try:
        value = reader.read()
    except yaml.YAMLError as fault:
        raise config_error([*reader.problems, _syntax(fault, source)]) from fault
    if reader.problems:
        raise config_error(reader.problems)
    return Written(value=value, name=source, lines=dict(reader.lines))


def _decoded(data: bytes, source: str) -> str:
    if len(data) > YAML_SIZE_BYTES_MAX:
        raise ConfigError(f"{source}: larger than {YAML_SIZE_BYTES_MAX} bytes; an experiment file is a few kilobytes")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise ConfigError(f"{source}:{line}: byte {data[fault.start]:#04x} is not UTF-8; save it as UTF-8") from fault
    if (bad := _UNPRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, bad.start()) + 1
        raise ConfigError(f"{source}:{line}: the character U+{ord(bad.group()):04X} is not allowed in YAML; remove it")
    return text


def _events(text: str) -> Iterator[Event]:
    loader = _Loader(text)
    try:
        while not isinstance(event := loader.get_event(), StreamEndEvent):
            yield event
    finally:
        loader.dispose()


def _syntax(fault: yaml.YAMLError, source: str) -> str:
    mark = getattr(fault, "problem_mark", None)
    where = source if mark is None else f"{source}:{mark.line + 1}"
    problem = getattr(fault, "problem", None) or "it cannot be read"
    # PyYAML looks ahead, and from 6.0.4 on it refuses 1,000 levels before it gives us the first of them.
    if "nesting depth" in problem:
        return f"{where}: {_TOO_DEEP}"
    # An unquoted `*` names an anchor; as a key of its own it means all that is left.
    hint = "; quote a text that begins with * or &" if "alphabetic or numeric character" in problem else ""
    return f"{where}: not valid YAML: {problem}{hint}"


class _Anchored(NamedTuple):
    """A node that aliases repeat: its value, its depth and size, and the lines below it."""

    value: JsonValue
    depth: int
    size: int
    lines: list[tuple[KeyPath, int]]


class _Reader:
    """Makes a value of events, counting as it goes; collects problems, and stops at the first broken bound."""

    def __init__(self, source: str, events: Iterator[Event]) -> None:
        self.problems: list[str] = []
        self.lines: list[tuple[KeyPath, int]] = []
        self._source = source
        self._events = events
        self._nodes = 0
        self._anchors: dict[str, _Anchored | None] = {}

    def read(self) -> JsonValue:
        """The value of the only document."""
        value: JsonValue = None
        for event in self._events:
            if isinstance(event, DocumentStartEvent) and self.lines:
                self._problem(event, "a second document begins; a file holds one")
                break
            if isinstance(event, NodeEvent):
                value = self._node(event, ())
        if not self.lines:
            raise ConfigError(f"{self._source}:1: empty; nothing is written in it")
        return value

    def _node(self, event: Event, path: KeyPath, line: int | None = None) -> JsonValue:
        """The value of a node; `line` is that of the key before it. The recursion is bounded by `_count`."""
        self.lines.append((path, line or _line(event)))
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        start, before = len(self.lines), self._nodes
        self._count(event, 1, len(path) + 1)
        if (tag := getattr(event, "tag", None)) is not None:
            self._problem(event, f"the tag {clipped(str(tag))} is not allowed; write a plain value")
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self._anchors[anchor] = None
        value: JsonValue
        if isinstance(event, ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, SequenceStartEvent):
            value = [self._node(child, (*path, index)) for index, child in enumerate(self._children())]
        else:
            value = self._mapping(path)
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, len(path), self._nodes - before, self.lines[start:])
        return value

    def _alias(self, event: AliasEvent, path: KeyPath) -> JsonValue:
        name = clipped(event.anchor)
        if event.anchor not in self._anchors:
            raise self._refused(event, f"the alias {name} has no anchor before it")
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise self._refused(event, f"the alias {name} is inside its own anchor")
        below = [((*path, *other[anchored.depth :]), line) for other, line in anchored.lines]
        self._count(event, anchored.size, 1 + max((len(other) for other, _ in below), default=len(path)))
        self.lines += below
        return deepcopy(anchored.value)

    def _mapping(self, path: KeyPath) -> JsonObject:
        entries: JsonObject = {}
        lines: dict[str, int] = {}
        for event in self._children():
            start = len(self.lines)
            key = self._node(event, (*path, ""))
            del self.lines[start:]  # Those of the key itself.
            value = self._node(next(self._events), (*path, str(key)), _line(event))
            if not isinstance(key, str):
                kind = "a list or a mapping" if isinstance(key, list | dict) else clipped(key)
                self._problem(event, f"the key {kind} is not a text; keys are texts, quote it")
            elif key == "<<" and isinstance(event, ScalarEvent) and event.implicit[0]:
                self._problem(event, "merge keys (<<) are not allowed; write the entries out")
            elif key in entries:
                self._problem(event, f"duplicate key {clipped(key)}; first on line {lines[key]}")
            else:
                entries[key], lines[key] = value, _line(event)
        return entries

    def _children(self) -> Iterator[Event]:
        """The events that begin a child of the collection being read, up to its end."""
        for event in self._events:
            if not isinstance(event, NodeEvent):
                return
            yield event

    def _scalar(self, event: ScalarEvent) -> JsonValue:
        text: str = event.value
        if _SURROGATE.search(text):
            self._problem(event, "half a surrogate pair is not a character; remove the escape")
            return ""
        if not event.implicit[0]:
            return text
        try:
            return plain_scalar(text)
        except ValueError as trap:
            self._problem(event, f"{clipped(text)[1:-1]} {trap}")
            return text

    def _count(self, event: Event, size: int, depth: int) -> None:
        self._nodes += size
        if self._nodes > YAML_NODES_MAX:
            raise self._refused(event, f"more than {YAML_NODES_MAX} values, aliases written out")
        if depth > YAML_DEPTH_MAX:
            raise self._refused(event, _TOO_DEEP)

    def _problem(self, event: Event, text: str) -> None:
        self.problems.append(f"{self._source}:{_line(event)}: {text}")
        if len(self.problems) > CONFIG_PROBLEMS_MAX:
            raise config_error(self.problems)

    def _refused(self, event: Event, text: str) -> ConfigError:
        return config_error([*self.problems, f"{self._source}:{_line(event)}: {text}"])


def _line(event: Event) -> int:
    return 1 if event.start_mark is None else int(event.start_mark.line) + 1


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
        return "is not a finite number"
    return None


def as_object(value: JsonValue) -> JsonObject:
    """`value` if it is a mapping, or else an empty one."""
    return value if isinstance(value, dict) else {}


def plain_value(content: Mapping[str, object], name: str = "experiment") -> JsonObject:
    """`content` as a file would hold it. Raises ConfigError with every value that no file can hold.

    Tuples become lists, and an object that a module defines becomes `module:name`.
    """
    if not isinstance(content, Mapping):
        raise ConfigError(f"{name}: found a {type(content).__name__}; an experiment is a mapping of sections")
    reader = _Plain()
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


class _Plain:
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
            return _plain_scalar(value)
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


def _plain_scalar(value: object) -> JsonValue:
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
    if module == "__main__" and name.isidentifier():
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
