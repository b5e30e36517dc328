"""The `_grid` of a mac-fairness file as axes: lists of rows, each the values of some of its keys.

Their rules of `derive` may use keys that ours do not have. So each derived key is worked out here, row by row, and
becomes a key of the axis that it depends on. One row alone is not an axis: it is a value of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal

from mac_runner.environments.discussion.imports.mac_fairness.keys import NAME
from mac_runner.errors import ConfigError
from mac_runner.problems import Problem, dotted, found
from mac_runner.section import KeyPath
from mac_runner.types import JsonObject, JsonValue

GRID: Final = "_grid"
_NO_VALUE: Final = "_"
"""What their files write for a value that the grid sets."""
_TIMESTAMP: Final = re.compile(r"\{runtime\.\w+\}[_-]?")
_PLACEHOLDER: Final = re.compile(r"\{([^{}]+)\}")
_KINDS: Final = ("sweep", "broadcast", "zip")


@dataclass(slots=True)
class Axis:
    """Keys that vary together: in each row, their values by path. `places` says where a key is written."""

    kind: Literal["sweep", "broadcast", "zip"]
    name: str
    rows: list[dict[KeyPath, JsonValue]]
    places: dict[KeyPath, KeyPath] = field(default_factory=dict)


@dataclass(slots=True)
class Layout:
    """A file of theirs with its grid worked out."""

    base: JsonObject
    axes: list[Axis]
    places: dict[KeyPath, KeyPath]
    """Where values of the base that came from the grid are written."""
    used: set[KeyPath]
    """The keys that a derived one was made of."""
    left_out: list[Problem]


def laid_out(values: JsonObject) -> Layout:
    """The base values, with all that the grid sets to one value only, and the axes."""
    layout = Layout({key: value for key, value in values.items() if key != GRID}, [], {}, set(), [])
    grid = values.get(GRID) or {}
    if not isinstance(grid, dict):
        raise ConfigError(f"{GRID}: {found(grid)}; a grid has sweep, zip, broadcast and derive")
    for kind in grid.keys() - {*_KINDS, "derive"}:
        layout.left_out.append(Problem((GRID, kind), "is unknown to mac-fairness too; take it out"))
    for name, spec in _named(grid, "sweep"):
        rows = [{_path(name): value} for value in _listed(spec, (GRID, "sweep", name))]
        layout.axes.append(Axis("sweep", name, rows, {_path(name): (GRID, "sweep", name)}))
    for name, spec in _named(grid, "broadcast"):
        layout.axes.append(_broadcast(name, spec))
    for name, spec in _named(grid, "zip"):
        layout.axes.append(_zipped(name, spec))
    for target, template in _named(grid, "derive"):
        _derive(layout, target, template)
    for axis in list(layout.axes):
        if len(axis.rows) == 1:
            layout.axes.remove(axis)
            for path, value in axis.rows[0].items():
                layout.places[path] = axis.places[path]
                put(layout.base, path, value)
    for path in [*_unset(layout.base, (), {path for axis in layout.axes for path in axis.places})]:
        layout.left_out.append(Problem(path, "is _, and nothing in _grid sets it; write its value"))
    return layout


def _named(grid: JsonObject, kind: str) -> Iterator[tuple[str, JsonValue]]:
    part = grid.get(kind) or {}
    if not isinstance(part, dict):
        raise ConfigError(f"{GRID}.{kind}: {found(part)}; it is a mapping")
    yield from part.items()


def _listed(value: JsonValue, here: KeyPath) -> list[JsonValue]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{dotted(here)}: {found(value)}; it lists values")
    return [_without_timestamp(entry) for entry in value]


def _broadcast(name: str, spec: JsonValue) -> Axis:
    here: KeyPath = (GRID, "broadcast", name)
    if not isinstance(spec, dict):
        raise ConfigError(f"{dotted(here)}: {found(spec)}; it has paths and values")
    paths = [_path(str(key)) for key in _listed(spec.get("paths"), (*here, "paths"))]
    values = _listed(spec.get("values"), (*here, "values"))
    places: dict[KeyPath, KeyPath] = {path: (*here, "paths", place) for place, path in enumerate(paths)}
    return Axis("broadcast", name, [dict.fromkeys(paths, value) for value in values], places)


def _zipped(name: str, spec: JsonValue) -> Axis:
    here: KeyPath = (GRID, "zip", name)
    axis = Axis("zip", name, [])
    for number, row in enumerate(_listed(spec, here)):
        if not isinstance(row, dict):
            raise ConfigError(f"{dotted((*here, number))}: {found(row)}; a row is a mapping of keys to values")
        axis.rows.append({_path(key): value for key, value in row.items()})
        for key in row:
            axis.places.setdefault(_path(key), (*here, number, key))
    return axis


def _path(key: str) -> KeyPath:
    return tuple(int(part) if part.isdecimal() else part for part in key.split("."))


def _without_timestamp(value: JsonValue) -> JsonValue:
    if isinstance(value, str):
        return _TIMESTAMP.sub("", value).rstrip("_-") if "{runtime." in value else value
    if isinstance(value, list):
        return [_without_timestamp(entry) for entry in value]
    return {key: _without_timestamp(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _derive(layout: Layout, target: str, template: JsonValue) -> None:
    """Set a derived key in each row of the axis that it depends on, or in the base."""
    path, here = _path(target), (GRID, "derive", target)
    template = str(_without_timestamp(template))
    fields = [_path(name) for name in _PLACEHOLDER.findall(template)]
    owners = [axis for axis in layout.axes if any(name in axis.places for name in fields)]
    if path == NAME and any(len(axis.rows) > 1 for axis in owners):
        text = "a combination is named after the file's own name and its values; choose that name"
        layout.left_out.append(Problem(here, text))
        return
    axis = _merged(layout, owners)
    layout.used.update(fields)
    rows: list[dict[KeyPath, JsonValue]] = [{}] if axis is None else axis.rows
    for row in rows:
        text = template
        for field_path in fields:
            value = row[field_path] if field_path in row else value_at(layout.base, field_path)
            if value is None or value == _NO_VALUE:
                reason = f"its {{{dotted(field_path)}}} names no value; write out what it makes"
                layout.left_out.append(Problem(here, reason))
                return
            text = text.replace(f"{{{dotted(field_path)}}}", str(value))
        if axis is None:
            put(layout.base, path, text)
            layout.places[path] = here
        else:
            row[path] = text
            axis.places[path] = here


def _merged(layout: Layout, axes: list[Axis]) -> Axis | None:
    """One axis in place of several, with a row for each combination of theirs."""
    if len(axes) <= 1:
        return next(iter(axes), None)
    rows = [{path: value for row in rows for path, value in row.items()} for rows in product(*(a.rows for a in axes))]
    places = {path: place for axis in axes for path, place in axis.places.items()}
    merged = Axis("zip", "_".join(axis.name for axis in axes), rows, places)
    layout.axes[layout.axes.index(axes[0])] = merged
    for axis in axes[1:]:
        layout.axes.remove(axis)
    return merged


def _unset(value: JsonValue, path: KeyPath, set_later: set[KeyPath]) -> Iterator[KeyPath]:
    """Where the base has no value, and no axis sets it; such values are taken out."""
    entries: list[tuple[str | int, JsonValue]] = []
    if isinstance(value, dict):
        entries += value.items()
    elif isinstance(value, list):
        entries += enumerate(value)
    for key, entry in entries:
        here: KeyPath = (*path, key)
        if entry != _NO_VALUE:
            yield from _unset(entry, here, set_later)
        elif isinstance(value, dict):
            del value[str(key)]
            if here not in set_later:
                yield here


def value_at(value: JsonValue, path: KeyPath) -> JsonValue:
    """The value at a path; None where nothing is."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def put(value: JsonObject, path: KeyPath, new: JsonValue) -> None:
    """Set the value at a path; mappings and entries on the way are made."""
    here: JsonValue = value
    for part, following in zip(path, (*path[1:], None), strict=True):
        empty: JsonValue = [] if isinstance(following, int) else {}
        if isinstance(here, list) and isinstance(part, int):
            here.extend({} for _ in range(part + 1 - len(here)))
            here[part] = new if following is None else here[part]
            here = here[part]
        elif isinstance(here, dict):
            if following is None or not isinstance(here.get(str(part)), dict | list):
                here[str(part)] = new if following is None else empty
            here = here[str(part)]
        else:
            return
