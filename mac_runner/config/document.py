"""YAML bytes to plain values, with the line of each, at a bounded cost.

The parser reads the stream of YAML events and builds only null, bool, int, float, str, list and dict. It checks size,
depth and the number of nodes (an alias counts for everything it expands to) while events come in, so a hostile file is
refused before it costs anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

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
from mac_runner.problems import CONFIG_PROBLEMS_MAX, clipped, config_error
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
class Document:
    """The value of a YAML document, and the line on which each path of it begins."""

    value: JsonValue
    lines: Mapping[KeyPath, int]


@dataclass(slots=True, kw_only=True)
class _Node:
    """A node as written: a scalar's value, or the entries of a collection. Aliases share their anchor's node."""

    line: int
    size: int = 1
    height: int = 1
    value: JsonValue = None
    items: list[_Node] | None = None
    entries: dict[str, tuple[int, _Node]] | None = None


_Anchors: TypeAlias = dict[str, _Node | None]


def parse_document(data: bytes, source: str) -> Document:
    """Parse one YAML document. Raises ConfigError with every problem as `source:line: …`."""
    text = _decoded(data, source)
    reader = _Reader(source=source)
    try:
        root = reader.read(_events(text))
    except yaml.YAMLError as fault:
        raise config_error([*reader.problems, _syntax(fault, source)]) from fault
    if reader.problems:
        raise config_error(reader.problems)
    lines: dict[KeyPath, int] = {}
    return Document(value=_build(root, (), lines), lines=lines)


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


def _build(node: _Node, path: KeyPath, lines: dict[KeyPath, int]) -> JsonValue:
    """The plain value of a node; the recursion is bounded by the depth checked before."""
    lines.setdefault(path, node.line)
    if node.items is not None:
        return [_build(item, (*path, index), lines) for index, item in enumerate(node.items)]
    if node.entries is not None:
        for key, (line, _) in node.entries.items():
            lines[(*path, key)] = line
        return {key: _build(entry, (*path, key), lines) for key, (_, entry) in node.entries.items()}
    return node.value


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads events into nodes, counting as it goes; collects problems, and stops at the first broken bound."""

    source: str
    problems: list[str] = field(default_factory=list)
    nodes: int = 0
    anchors: _Anchors = field(default_factory=dict)

    def read(self, events: Iterator[Event]) -> _Node:
        """The root node of the only document."""
        root: _Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent) and root is not None:
                self._problem(event, "a second document begins; a file holds one")
                break
            if isinstance(event, NodeEvent):
                root = self._node(event, events, 1)
        if root is None:
            raise ConfigError(f"{self.source}:1: empty; nothing is written in it")
        return root

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> _Node:
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        self._count(event, 1, depth)
        node = _Node(line=_line(event))
        if (tag := getattr(event, "tag", None)) is not None:
            self._problem(event, f"the tag {clipped(str(tag))} is not allowed; write a plain value")
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self.anchors[anchor] = None
        if isinstance(event, ScalarEvent):
            node.value = self._scalar(event)
        elif isinstance(event, SequenceStartEvent):
            self._sequence(node, events, depth)
        else:
            self._mapping(node, events, depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _alias(self, event: AliasEvent, depth: int) -> _Node:
        name = clipped(event.anchor)
        if event.anchor not in self.anchors:
            raise self._refused(event, f"the alias {name} has no anchor before it")
        node = self.anchors[event.anchor]
        if node is None:
            raise self._refused(event, f"the alias {name} is inside its own anchor")
        self._count(event, node.size, depth + node.height - 1)
        return node

    def _sequence(self, node: _Node, events: Iterator[Event], depth: int) -> None:
        node.items = []
        for event in _until_end(events):
            node.items.append(self._child(node, event, events, depth))

    def _mapping(self, node: _Node, events: Iterator[Event], depth: int) -> None:
        node.entries = {}
        for event in _until_end(events):
            key = self._child(node, event, events, depth)
            child = self._child(node, next(events), events, depth)
            if self._is_key(event, key, node.entries):
                node.entries[str(key.value)] = (_line(event), child)

    def _child(self, parent: _Node, event: Event, events: Iterator[Event], depth: int) -> _Node:
        child = self._node(event, events, depth + 1)
        parent.size += child.size
        parent.height = max(parent.height, child.height + 1)
        return child

    def _is_key(self, event: Event, key: _Node, entries: Mapping[str, tuple[int, _Node]]) -> bool:
        """Whether `key` may name an entry; a problem was noted if not."""
        if not isinstance(key.value, str):
            kind = "a list or a mapping" if key.items is not None or key.entries is not None else clipped(key.value)
            self._problem(event, f"the key {kind} is not a text; keys are texts, quote it")
        elif key.value == "<<" and isinstance(event, ScalarEvent) and event.implicit[0]:
            self._problem(event, "merge keys (<<) are not allowed; write the entries out")
        elif key.value in entries:
            self._problem(event, f"duplicate key {clipped(key.value)}; first on line {entries[key.value][0]}")
        else:
            return True
        return False

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
        self.nodes += size
        if self.nodes > YAML_NODES_MAX:
            raise self._refused(event, f"more than {YAML_NODES_MAX} values, aliases written out")
        if depth > YAML_DEPTH_MAX:
            raise self._refused(event, _TOO_DEEP)

    def _problem(self, event: Event, text: str) -> None:
        self.problems.append(f"{self.source}:{_line(event)}: {text}")
        if len(self.problems) > CONFIG_PROBLEMS_MAX:
            raise config_error(self.problems)

    def _refused(self, event: Event, text: str) -> ConfigError:
        return config_error([*self.problems, f"{self.source}:{_line(event)}: {text}"])


def _until_end(events: Iterator[Event]) -> Iterator[Event]:
    """The events that begin a child of the collection being read, up to its end."""
    for event in events:
        if not isinstance(event, NodeEvent):
            return
        yield event


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
