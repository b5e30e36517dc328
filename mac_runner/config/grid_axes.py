"""`_grid`: the axes along which the experiments of a file vary.

There are four ways to vary any key of the file, named by its dotted path. `sweep` tries every value of a key; `zip`
varies several keys together, row by row; `broadcast` gives several keys the same value; these three multiply. `derive`
computes a key of each combination from its other keys and multiplies nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from pydantic import Field, ValidationError
from pydantic import JsonValue as AnyJson

from mac_runner.config.resolution import Draft, Loaded, draft_error, refuse, resolve_path
from mac_runner.config.validation import complaints
from mac_runner.problems import Problem, dotted
from mac_runner.section import KeyPath, Listed, Name, Section, Text
from mac_runner.spec import ReportConfig
from mac_runner.types import JsonObject, JsonValue

GRID_KEY: Final = "_grid"
GRID_COMBINATIONS_MAX: Final = 5_000
"""A grid of more combinations is taken for a slip."""

Values: TypeAlias = Annotated[Listed[AnyJson], Field(min_length=1)]
Named: TypeAlias = Annotated[Mapping[Name, AnyJson], Field(min_length=1)]
"""Values under the labels that tables and directories call them by."""
Row: TypeAlias = Annotated[Mapping[Text, AnyJson], Field(min_length=1)]
Rows: TypeAlias = Annotated[Listed[Row], Field(min_length=1)]
"""Keys that vary together, one mapping of keys to values after the other."""
NamedRows: TypeAlias = Annotated[Mapping[Name, Row], Field(min_length=1)]
Columns: TypeAlias = Annotated[Mapping[Text, Values], Field(min_length=1)]
"""Keys that vary together, each with its list; the lists are equally long."""


class BroadcastGroup(Section):
    """Several keys that always have the same value."""

    paths: Annotated[Listed[Text], Field(min_length=1)]
    """The keys."""
    values: Values | Named
    """The values, one at a time for all of the keys: a list, or a mapping from labels to values."""
    labels: Listed[Name] = ()
    """What the values of a list are called in tables and directories, one for each; without them, by themselves."""


class GridSection(Section):
    """What the combinations of a grid differ in; a key is written as `--set` takes it."""

    sweep: Mapping[Text, Values | Named] = {}
    """Each key with all its values: a list, or a mapping from labels to values."""
    zip: Mapping[Name, Rows | NamedRows | Columns] = {}
    """Groups of keys that vary together: rows (a list, or a mapping from labels), or for each key a list."""
    broadcast: Mapping[Name, BroadcastGroup] = {}
    """Groups of keys that share a value, and the values."""
    derive: Mapping[Text, Text] = {}
    """Keys computed from others: a text in which `{dotted.path}` is replaced by the value of that key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """One experiment of a grid.

    `identity` is a digest of all that its results depend on; `slug`, made of it and of its `values`, names its
    directory and is the end of its experiment's name. `values` are what it differs in, by column of the grid.
    """

    slug: str
    identity: str
    values: Mapping[str, JsonValue]
    loaded: Loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The experiments of one file, in the order in which the axes vary: the first one slowest.

    `name` is what the file calls the experiment, `columns` what the combinations differ in, `asked` the section itself,
    and `report` the section that says how they are compared; they themselves do not have it.
    """

    name: str
    profile: str
    columns: tuple[str, ...]
    combinations: tuple[Combination, ...]
    asked: JsonObject
    report: ReportConfig


_NAME_PATH: Final = ("experiment_metadata", "experiment_name")
_FIXED: Final[Mapping[KeyPath, str]] = {
    ("profile",): "a profile is chosen before the grid is laid out; vary what the profiles differ in",
    ("profiles",): "profiles are chosen before the grid is laid out; vary what they differ in",
    (GRID_KEY,): "a grid cannot vary itself",
    _NAME_PATH: "each combination is named after the file's name and its values",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value for one key; `origin` is where it was written."""

    path: KeyPath
    value: JsonValue
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place on an axis: what it sets, and what that is called in each of its columns."""

    settings: tuple[Setting, ...]
    values: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One thing that varies, as `key` of the section names it. All of its points set the same keys."""

    key: KeyPath
    points: tuple[Point, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """What its points differ in."""
        return tuple(self.points[0].values)


def section_of(draft: Draft) -> GridSection:
    """The section of the draft; an empty one without it. Raises ConfigError when it has another form."""
    if draft.value.get(GRID_KEY) is None:
        return GridSection()
    try:
        return GridSection.model_validate(draft.value[GRID_KEY])
    except ValidationError as failure:
        data: JsonValue = draft.value[GRID_KEY]
        problems = [Problem((GRID_KEY, *path), text) for path, text in complaints(failure, data, root=GridSection)]
    raise draft_error(draft, problems)


def axes_of(section: GridSection, draft: Draft) -> tuple[Axis, ...]:
    """The axes, the first one varying slowest. Raises ConfigError with every slip."""
    builder = _Builder(draft)
    axes = [axis for axis in builder.axes(section) if axis is not None]
    problems = [*builder.problems]
    if not problems:
        problems += _clashes(axes, section, draft)
        problems += too_many([len(axis.points) for axis in axes])
    refuse(draft, problems)
    return tuple(axes)


class _Cell(NamedTuple):
    """A value, and its place in the file."""

    value: JsonValue
    place: KeyPath


_Row: TypeAlias = Mapping[str, _Cell]
"""The values that keys have together."""
_Values: TypeAlias = Mapping[str, JsonValue]


class _Builder:
    """Makes axes and gathers what is wrong with them."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.problems: list[Problem] = []

    def axes(self, section: GridSection) -> Iterator[Axis | None]:
        for key, values in section.sweep.items():
            here: KeyPath = (GRID_KEY, "sweep", key)
            yield self._axis(
                here, {key: here}, [({key: called}, {key: cell}) for called, cell in _called(values, here)]
            )
        for name, group in section.zip.items():
            yield self._zip(name, group)
        for name, broadcast in section.broadcast.items():
            yield self._broadcast(name, broadcast)

    def _zip(self, name: str, group: tuple[_Values, ...] | Mapping[str, Any]) -> Axis | None:
        here: KeyPath = (GRID_KEY, "zip", name)
        labels: tuple[str, ...] = ()
        if isinstance(group, tuple):
            rows = _by_row(here, enumerate(group))
        elif isinstance(next(iter(group.values())), tuple):
            rows = self._by_column(here, group)
        else:
            rows, labels = _by_row(here, group.items()), tuple(group)
        if not rows:
            return None
        keys = {key: cell.place for key, cell in rows[0].items()}
        called: list[_Values] = [{name: label} for label in labels]
        called = called or [{key: cell.value for key, cell in row.items()} for row in rows]
        return self._axis(here, keys, list(zip(called, rows, strict=True)))

    def _by_column(self, here: KeyPath, columns: Mapping[str, Sequence[JsonValue]]) -> list[_Row]:
        """The rows of a group that is written by column; none, and a problem, where one is longer than another."""
        first, length = next((key, len(values)) for key, values in columns.items())
        for key, values in columns.items():
            if len(values) != length:
                text = f"has {len(values)} values, and {first} has {length}; keys that vary together have equally many"
                self._refuse((*here, key), text)
                return []
        return [
            {key: _Cell(values[place], (*here, key, place)) for key, values in columns.items()}
            for place in range(length)
        ]

    def _broadcast(self, name: str, group: BroadcastGroup) -> Axis | None:
        here: KeyPath = (GRID_KEY, "broadcast", name)
        values = [*_called(group.values, (*here, "values"))]
        labels = group.labels or [called for called, _ in values]
        if len(labels) != len(values):
            self._refuse((*here, "labels"), f"has {len(labels)} names for {len(values)} values; give each value one")
            return None
        if group.labels and isinstance(group.values, Mapping):
            self._refuse((*here, "labels"), "the values have labels already; leave one of the two out")
        keys: dict[str, KeyPath] = {}
        for place, key in enumerate(group.paths):
            if keys.setdefault(key, (*here, "paths", place)) != (*here, "paths", place):
                self._refuse((*here, "paths", place), f"{key} is listed twice; leave one of the two out")
        rows = [({name: label}, dict.fromkeys(keys, cell)) for label, (_, cell) in zip(labels, values, strict=True)]
        return self._axis(here, keys, rows)

    def _axis(self, here: KeyPath, keys: Mapping[str, KeyPath], rows: Sequence[tuple[_Values, _Row]]) -> Axis | None:
        """The axis of rows, each with what it is called; `keys` are those of the first one, with their places."""
        others = [row for _, row in rows if row.keys() != keys.keys()]
        for row in others:
            text = f"sets {', '.join(sorted(row))}; the first row sets {', '.join(sorted(keys))}: all set the same"
            self._refuse(next(iter(row.values())).place[:-1], text)
        paths = {key: self._path(place, key) for key, place in keys.items()}
        known = {key: path for key, path in paths.items() if path is not None}
        if len(known) < len(keys) or others:
            return None
        points: dict[str, Point] = {}
        for place, (values, row) in enumerate(rows):
            text = json.dumps(values, sort_keys=True)
            if text in points:
                self._refuse(here, f"entry {place} is listed twice; each is run once")
            settings = tuple(
                Setting(path=path, value=row[key].value, origin=self._draft.locate(row[key].place))
                for key, path in known.items()
            )
            points[text] = Point(settings=settings, values=values)
        return Axis(key=here, points=tuple(points.values()))

    def _path(self, here: KeyPath, key: str) -> KeyPath | None:
        try:
            path = resolve_path(self._draft.value, key)
        except ValueError as fault:
            self._refuse(here, str(fault))
            return None
        for fixed, reason in _FIXED.items():
            if related(path, fixed):
                self._refuse(here, f"cannot vary: {reason}")
                return None
        if (flag := self._draft.origins.get(path, "")).startswith("--"):
            self._refuse(here, f"is given by {flag} as well; leave one of the two out")
        return path

    def _refuse(self, path: KeyPath, text: str) -> None:
        self.problems.append(Problem(path, text))


def _by_row(here: KeyPath, rows: Iterable[tuple[str | int, _Values]]) -> list[_Row]:
    return [{key: _Cell(value, (*here, place, key)) for key, value in row.items()} for place, row in rows]


def _called(values: Sequence[JsonValue] | _Values, here: KeyPath) -> Iterator[tuple[JsonValue, _Cell]]:
    """Each value with what it is called in its column: its label, or itself."""
    if isinstance(values, Mapping):
        yield from ((label, _Cell(value, (*here, label))) for label, value in values.items())
    else:
        yield from ((value, _Cell(value, (*here, place))) for place, value in enumerate(values))


def related(one: KeyPath, other: KeyPath) -> bool:
    """Whether one key is the other, or holds it."""
    return one[: len(other)] == other[: len(one)]


def _clashes(axes: Sequence[Axis], section: GridSection, draft: Draft) -> Iterator[Problem]:
    """Keys that two places of the grid set, and columns that two axes share."""
    owners: dict[KeyPath, KeyPath] = {}
    columns: dict[str, KeyPath] = {}
    for axis in axes:
        for path in (setting.path for setting in axis.points[0].settings):
            for other, owner in owners.items():
                if related(path, other):
                    yield Problem(axis.key, f"sets {dotted(path)}, and {dotted(owner)} sets {dotted(other)}")
            owners[path] = axis.key
        for column in axis.columns:
            if column in columns:
                yield Problem(axis.key, f"is called {column!r}, as is {dotted(columns[column])}; give it another name")
            columns[column] = axis.key
    derived: dict[KeyPath, str] = {}
    for key in section.derive:
        with suppress(ValueError):  # A key that leads nowhere is reported when it is derived.
            path = resolve_path(draft.value, key)
            first = derived.setdefault(path, key)
            if first != key:
                yield Problem((GRID_KEY, "derive", key), f"{first!r} is the same key; leave one of the two out")
            elif path in owners:
                text = f"is set by {dotted(owners[path])} as well; leave one of the two out"
                yield Problem((GRID_KEY, "derive", key), text)
            elif path == _NAME_PATH:
                yield Problem((GRID_KEY, "derive", key), f"cannot vary: {_FIXED[path]}")


def too_many(sizes: Sequence[int]) -> Iterator[Problem]:
    """A problem where axes of these sizes have too many combinations."""
    if (count := prod(sizes)) > GRID_COMBINATIONS_MAX:
        product = " x ".join(map(str, sizes))
        text = f"{product} = {count:,} combinations; at most {GRID_COMBINATIONS_MAX:,}: vary less, or zip keys together"
        yield Problem((GRID_KEY,), text)
