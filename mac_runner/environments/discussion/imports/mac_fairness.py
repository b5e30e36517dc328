"""Experiments and grids of stair-lab/mac-fairness as ours.

Each of their keys becomes keys of ours by a rule of its own (`mac_fairness_keys.py`), in the file itself and in the
rows of its grid. What has no rule, or no meaning here, is listed. What their runner does without a key, and ours does
otherwise by default, is written out (`_DEFAULTS`), so that ours does the same.

A `_grid` of theirs is worked out as axes: lists of rows, each the values of some of its keys. Their rules of `derive`
may use keys that ours do not have. So each derived key is worked out here, row by row, and becomes a key of the axis
that it depends on. One row alone is not an axis: it is a value of the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, Literal

from mac_runner.config import Experiment
from mac_runner.environments.discussion.imports.mac_fairness_keys import (
    NAME,
    OPENAI_URL,
    QUESTIONS,
    Context,
    LeftOutError,
    Setting,
    name_of,
    rule_of,
    unknown,
)
from mac_runner.environments.discussion.imports.yaml_text import yaml_text
from mac_runner.errors import ConfigError
from mac_runner.flat import value_at
from mac_runner.problems import Problem, dotted, found
from mac_runner.registry import Imported
from mac_runner.section import RUNTIME, KeyPath, bearing_of, place_at
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
            value = row[field_path] if field_path in row else at_path(layout.base, field_path)
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


def at_path(value: JsonValue, path: KeyPath) -> JsonValue:
    """The value at a path; None where nothing is."""
    return value_at(value, [*map(str, path)])


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


_SECTIONS: Final = (
    "experiment_metadata",
    "seed",
    "conversation_config",
    "discussion",
    "retry_config",
    "model_definitions",
    "agent_definitions",
    GRID,
)
"""Our sections in the order in which they are written."""

_DEFAULTS: Final[tuple[tuple[KeyPath, JsonValue], ...]] = (
    (("seed",), 0),
    (("conversation_config", "environment"), "discussion"),
    (("conversation_config", "conversations"), "all"),
    (("discussion", "prompt", "choice_format"), "bullet"),
    (("discussion", "prompt", "answer_order"), "answer_first"),
    (("discussion", "identity_reveal_config", "reveal_from_round"), 2),
    (("retry_config", "when_exhausted"), "fail"),
)
"""What their runner does, whatever its file says."""
_ENGINE_DEFAULTS: Final[dict[str, JsonObject]] = {
    "vllm": {"constrained_decoding": "none", "vllm_config.max_model_len": 4096},
    "ollama": {"constrained_decoding": "json_object"},
    "openai": {
        "constrained_decoding": "json_object",
        "openai_config.base_urls": [OPENAI_URL],
        "openai_config.reply_limit_parameter": "max_completion_tokens",
        "openai_config.timeout_s": 120.0,
    },
    "anthropic": {
        "constrained_decoding": "none",
        "anthropic_config.api_version": "2023-06-01",  # The one that takes a temperature.
        "anthropic_config.timeout_s": 120.0,
    },
}
_KEY_VARIABLES: Final = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}

_COMMENTS: Final[dict[KeyPath, str]] = {
    ("seed",): "mac-fairness has no seed; for repetitions (its --rep 3) sweep it: `seed: [1, 2, 3]` in _grid",
    ("discussion", "answers", "near_match_threshold"): "likeness is measured otherwise here; our default is 88",
    ("discussion", "identity_reveal_config", "reveal_from_round"): "in mac-fairness, too, round 1 shows no identities",
    ("retry_config", "when_exhausted"): "a discussion without a usable answer fails there; `pass` goes on with it",
}


def imported(values: JsonObject, source: Path, folder: Path) -> Imported:
    """What the file at `source` holds as a file of ours in `folder`. Raises ConfigError for any other file."""
    for section in ("model_definitions", "agent_definitions"):
        if not isinstance(values.get(section), list | dict):
            raise ConfigError(f"{section}: is missing; a file of mac-fairness has its models and agents there")
    layout = laid_out(deepcopy(values))
    writer = _Writer(layout=layout, finder=_Finder(source, folder))
    writer.base()
    for axis in layout.axes:
        writer.axis(axis)
    writer.defaults(source)
    ordered: JsonObject = {key: writer.ours[key] for key in _SECTIONS if key in writer.ours}
    comments = {**_COMMENTS, **writer.comments}
    return Imported(yaml_text(ordered, comments), tuple(writer.left_out))


class _Finder:
    """Finds question files, which a file of theirs names from the root of their repository."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder = source.resolve(), folder.resolve()
        self.missing: list[str] = []

    def __call__(self, name: str) -> str:
        """The file as our file names it."""
        above = self._source.parents
        root = next((parent for parent in above if (parent / name).is_file()), None)
        if root is None:
            guesses = (parent.parent for parent in above if parent.name == "config")
            root = next(guesses, self._source.parent)
            self.missing.append(name)
        path = root / name
        return name if Path(name).is_absolute() else Path(os.path.relpath(path, self._folder)).as_posix()


@dataclass(slots=True, kw_only=True)
class _Writer:
    """Writes our file, and gathers what is left out."""

    layout: Layout
    finder: _Finder
    ours: JsonObject = field(default_factory=dict)
    comments: dict[KeyPath, str] = field(default_factory=dict)
    written: dict[KeyPath, JsonValue] = field(default_factory=dict)
    varied: set[KeyPath] = field(default_factory=set)
    """The keys that the grid sets."""
    left: dict[KeyPath, str] = field(default_factory=dict)

    @property
    def left_out(self) -> list[Problem]:
        """Everything that is not carried over, in the order of the file's sections."""
        return [*self.layout.left_out, *(Problem(path, text) for path, text in self.left.items())]

    def base(self) -> None:
        """Write the values that are alike in the whole file."""
        base = self.layout.base
        for path, value in _leaves(base, (), _backends(base)):
            place = self.layout.places.get(path, path)
            for setting in self._settings(self._context(base), path, value, place):
                before = self.written.get(setting.path, setting.value)
                if before != setting.value:
                    text = f"another key sets our {dotted(setting.path)} to {before!r} already; write the one you want"
                    self.left.setdefault(place, text)
                else:
                    self._write(setting)

    def axis(self, axis: Axis) -> None:
        """Write an axis of the grid, as far as its rows differ here too."""
        rows = [self._row(axis, row) for row in axis.rows]
        keys = list(dict.fromkeys(key for row in rows for key in row))
        full = [{key: row[key] if key in row else self._default(key) for key in keys} for row in rows]
        kept: dict[str, dict[KeyPath, JsonValue]] = {}
        for row in full:
            essence = {dotted(key): value for key, value in row.items() if _changes_results(key)}
            kept.setdefault(json.dumps(essence, sort_keys=True), row)
        chosen = list(kept.values())
        if (lost := len(full) - len(chosen)) and keys:
            text = f"{lost} of its {len(full)} rows differ from others in nothing that changes results; they are left"
            self.left.setdefault(next(iter(axis.places.values())), f"{text} out")
        if len(chosen) == 1:
            for key, value in chosen[0].items():
                self._write(Setting(key, value))
            return
        self.varied.update(keys)
        self._place(axis, keys, chosen)

    def defaults(self, source: Path) -> None:
        """Write out what their runner does in any case."""
        name = name_of(source.stem) or "imported"
        self._fill(NAME, name)
        for path, value in _DEFAULTS:
            self._fill(path, value)
        models = self.ours.get("model_definitions")
        for model, definition in models.items() if isinstance(models, dict) else ():
            backend = str(definition.get("backend")) if isinstance(definition, dict) else ""
            for key, value in _ENGINE_DEFAULTS.get(backend, {}).items():
                self._fill(("model_definitions", model, *key.split(".")), value)
            api = at_path(self.layout.base, ("model_definitions", model, "api_config"))
            if backend in _KEY_VARIABLES and not (isinstance(api, dict) and api.get("base_url")):
                path = ("model_definitions", model, f"{backend}_config", "api_key_env")
                self._fill(path, _KEY_VARIABLES[backend])
        for place, agent in _agents(self.layout.base):
            if _backends(self.layout.base).get(str(agent.get("model"))) == "anthropic":
                self._fill(("agent_definitions", place, "thinking"), False)
        texts = (path for path, value in self.written.items() if path[-1] == "demographics" and isinstance(value, str))
        if (first := next(texts, None)) is not None:
            self.comments[first] = 'a text is shown as it is; {race: black} reads "a black doctor", as in mac-fairness'
        if self.finder.missing:
            text = f"not found from {source}: {', '.join(dict.fromkeys(self.finder.missing))}; put the files there"
            self.comments[QUESTIONS if QUESTIONS in self.written else (GRID,)] = text

    def _context(self, values: JsonObject) -> Context:
        models = {place: str(agent["model"]) for place, agent in _agents(values) if "model" in agent}
        backends = _backends(values)
        return Context(
            backends=backends,
            models=models,
            speakers={name: tuple(place for place, model in models.items() if model == name) for name in backends},
            api={
                name: api
                for name in backends
                if isinstance(api := at_path(values, ("model_definitions", name, "api_config")), dict)
            },
            rounds=at_path(values, ("conversation_config", "max_rounds")),
            find=self.finder,
        )

    def _row(self, axis: Axis, row: dict[KeyPath, JsonValue]) -> dict[KeyPath, JsonValue]:
        applied = deepcopy(self.layout.base)
        for path, value in row.items():
            put(applied, path, deepcopy(value))
        context = self._context(applied)
        found: dict[KeyPath, JsonValue] = {}
        for path, value in row.items():
            for leaf, entry in _leaves(value, path, context.backends):
                for setting in self._settings(context, leaf, entry, axis.places[path]):
                    if setting.path == NAME:
                        text = "a combination is named after the file's own name and its values; choose that name"
                        self.left.setdefault(axis.places[path], text)
                    else:
                        found[setting.path] = setting.value
        return found

    def _settings(self, context: Context, path: KeyPath, value: JsonValue, place: KeyPath) -> Iterator[Setting]:
        """What a key becomes; its reason is kept where it is left out."""
        rule = rule_of(path, context.backends)
        if rule is None:
            if value is not None or path not in _SECTIONS_OF_THEIRS:
                self.left.setdefault(place, unknown(path))
            return
        try:
            yield from rule(context, path, value)
        except LeftOutError as reason:
            if path not in self.layout.used:
                self.left.setdefault(place, str(reason))

    def _default(self, path: KeyPath) -> JsonValue:
        """The value of a key in a row that does not set it."""
        if path in self.written:
            return self.written[path]
        known = place_at(Experiment, path).field
        default: JsonValue = None if known is None or known.is_required() else known.get_default()
        return default

    def _write(self, setting: Setting) -> None:
        self.written[setting.path] = setting.value
        put(self.ours, setting.path, setting.value)

    def _fill(self, path: KeyPath, value: JsonValue) -> None:
        if path not in self.written and path not in self.varied:
            self._write(Setting(path, value))

    def _place(self, axis: Axis, keys: list[KeyPath], rows: list[dict[KeyPath, JsonValue]]) -> None:
        """Write an axis in the form that it had, as far as that still fits."""
        name = name_of(axis.name) or "group"
        if len(keys) == 1 and axis.kind != "broadcast":
            put(self.ours, (GRID, "sweep", dotted(keys[0])), [row[keys[0]] for row in rows])
        elif axis.kind == "broadcast" and all(row[key] == row[keys[0]] for row in rows for key in keys):
            group: JsonObject = {"paths": [dotted(key) for key in keys], "values": [row[keys[0]] for row in rows]}
            put(self.ours, (GRID, "broadcast", name), group)
        else:
            written: list[JsonValue] = [{dotted(key): row[key] for key in keys} for row in rows]
            put(self.ours, (GRID, "zip", name), written)


_SECTIONS_OF_THEIRS: Final[frozenset[KeyPath]] = frozenset(
    {
        ("experiment_metadata",),
        ("conversation_config",),
        ("retry_config",),
        ("identity_reveal_config",),
        ("prompt_template_config",),
        ("prompt_template_config", "for_participant"),
    }
)
"""Their sections, which may be empty."""


def _leaves(value: JsonValue, path: KeyPath, backends: Mapping[str, str]) -> Iterator[tuple[KeyPath, JsonValue]]:
    """The values below a path, each at the key that a rule knows, or at the deepest one."""
    if path and rule_of(path, backends) is not None:
        yield path, value
    elif isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from _leaves(entry, (*path, key), backends)
    elif isinstance(value, list) and value and path == ("agent_definitions",):
        for place, entry in enumerate(value):
            yield from _leaves(entry, (*path, place), backends)
    elif path:
        yield path, value


def _backends(values: JsonObject) -> dict[str, str]:
    models = values.get("model_definitions")
    return {
        name: str(definition["backend"])
        for name, definition in (models.items() if isinstance(models, dict) else ())
        if isinstance(definition, dict) and "backend" in definition
    }


def _agents(values: JsonObject) -> Iterator[tuple[int, JsonObject]]:
    agents = values.get("agent_definitions")
    for place, agent in enumerate(agents if isinstance(agents, list) else ()):
        if isinstance(agent, dict):
            yield place, agent


def _changes_results(path: KeyPath) -> bool:
    """Whether combinations that differ in this key are two experiments; of questions, the content counts."""
    return path[:2] == QUESTIONS or bearing_of(Experiment, path) is not RUNTIME
