"""Experiments and grids of stair-lab/mac-fairness as ours.

Each of their keys becomes keys of ours by a rule of its own (`mac_fairness_keys.py`). What has no rule, or no meaning
here, is listed. What their runner does without a key, and ours does otherwise by default, is written out (`_DEFAULTS`),
so that ours does the same.

A `_grid` of theirs is worked out as axes: lists of rows, each the values of some of its keys. Their rules of `derive`
may use keys that ours do not have. So each derived key is worked out here, row by row, and becomes a key of the axis
that it depends on. Each row is put into the file, and all of that is carried over: where the results differ, our axis
has a key. What is alike in all rows, or in the only one, is a value of the file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import chain, product
from pathlib import Path
from typing import Final, Literal, TypeAlias

from mac_runner.config import Experiment, yaml_text
from mac_runner.config.document import parse_document
from mac_runner.environments.discussion.imports.mac_fairness_keys import (
    NAME,
    OPENAI_URL,
    QUESTIONS,
    Context,
    LeftOutError,
    name_of,
    rule_of,
    unknown,
)
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
_NAMED_BY_FILE: Final = "a combination is named after the file's own name and its values; choose that name"

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

_DEFAULTS: Final[Mapping[KeyPath, JsonValue]] = {
    ("seed",): 0,
    ("conversation_config", "environment"): "discussion",
    ("conversation_config", "conversations"): "all",
    ("discussion", "prompt", "choice_format"): "bullet",
    ("discussion", "prompt", "answer_order"): "answer_first",
    ("discussion", "identity_reveal_config", "reveal_from_round"): 2,
    ("retry_config", "when_exhausted"): "fail",
}
"""What their runner does, whatever its file says."""
_ENGINE_DEFAULTS: Final[Mapping[str, JsonObject]] = {
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

_COMMENTS: Final[Mapping[KeyPath, str]] = {
    ("seed",): "mac-fairness has no seed; for repetitions (its --rep 3) sweep it: `seed: [1, 2, 3]` in _grid",
    ("discussion", "answers", "near_match_threshold"): "likeness is measured otherwise here; our default is 88",
    ("discussion", "identity_reveal_config", "reveal_from_round"): "in mac-fairness, too, round 1 shows no identities",
    ("retry_config", "when_exhausted"): "a discussion without a usable answer fails there; `pass` goes on with it",
}

_Row: TypeAlias = dict[KeyPath, JsonValue]
"""Values by the paths of their keys."""


def imported(values: JsonObject, source: Path, folder: Path) -> Imported:
    """What the file at `source` holds as a file of ours in `folder`. Raises ConfigError for any other file."""
    for section in ("model_definitions", "agent_definitions"):
        if not isinstance(values.get(section), list | dict):
            raise ConfigError(f"{section}: is missing; a file of mac-fairness has its models and agents there")
    theirs = _Theirs(values)
    ours = _Ours(theirs, source, folder)
    written: JsonObject = {}
    for path, value in ours.values.items():
        _put(written, path, value)
    text = yaml_text({key: written[key] for key in _SECTIONS if key in written})
    left_out = tuple(Problem(path, reason) for path, reason in theirs.left_out.items())
    return Imported(_with_comments(text, {**_COMMENTS, **ours.comments}), left_out)


def _with_comments(text: str, comments: Mapping[KeyPath, str]) -> str:
    """YAML with each comment above its key, and a blank line before each section."""
    lines = text.splitlines()
    # From the last line on, so that the lines before it keep their numbers.
    for path, number in sorted(parse_document(text.encode(), "new").lines.items(), key=lambda at: at[1], reverse=True):
        line = lines[number - 1]
        if path in comments:
            lines.insert(number - 1, f"{line[: len(line) - len(line.lstrip())]}# {comments[path]}")
        if len(path) == 1 and number > 1:
            lines.insert(number - 1, "")
    return "".join(f"{line}\n" for line in lines)


@dataclass(slots=True)
class _Axis:
    """Keys of theirs that vary together, row by row. `places` says where each of them is written."""

    kind: Literal["sweep", "broadcast", "zip"]
    name: str
    rows: list[_Row]
    places: dict[KeyPath, KeyPath] = field(default_factory=dict)


class _Theirs:
    """A file of theirs with its grid worked out: the values of the file, and the axes."""

    def __init__(self, values: JsonObject) -> None:
        self.base: JsonObject = deepcopy({key: value for key, value in values.items() if key != GRID})
        self.axes: list[_Axis] = []
        self.places: dict[KeyPath, KeyPath] = {}
        """Where values of the base that came from the grid are written."""
        self.used: set[KeyPath] = set()
        """The keys that a derived one was made of."""
        self.left_out: dict[KeyPath, str] = {}
        grid = _mapping(_without_timestamp(values.get(GRID)), (GRID,), "a grid has sweep, zip, broadcast and derive")
        for kind in grid.keys() - {"sweep", "zip", "broadcast", "derive"}:
            self.left_out[GRID, kind] = "is unknown to mac-fairness too; take it out"
        for name, listed in _mapping(grid.get("sweep"), (GRID, "sweep")).items():
            here: KeyPath = (GRID, "sweep", name)
            rows = [{_path(name): value} for value in _listed(listed, here)]
            self.axes.append(_Axis("sweep", name, rows, {_path(name): here}))
        for name, group in _mapping(grid.get("broadcast"), (GRID, "broadcast")).items():
            self.axes.append(_broadcast(name, group))
        for name, group in _mapping(grid.get("zip"), (GRID, "zip")).items():
            self.axes.append(_zipped(name, group))
        for target, template in _mapping(grid.get("derive"), (GRID, "derive")).items():
            self._derive(target, str(template))
        for axis in self.axes:
            self._leave_strays_out(axis)
        self.axes = [axis for axis in self.axes if axis.places]
        for axis in [axis for axis in self.axes if len(axis.rows) == 1]:
            self.axes.remove(axis)
            self._set(axis.rows[0], axis.places)
        for path in [*_unset(self.base, (), {path for axis in self.axes for path in axis.places})]:
            self.left_out[path] = "is _, and nothing in _grid sets it; write its value"

    def _set(self, row: _Row, places: Mapping[KeyPath, KeyPath]) -> None:
        for path, value in row.items():
            self.places[path] = places[path]
            _put(self.base, path, value)

    def _derive(self, target: str, template: str) -> None:
        """Set a derived key in each row of the axis that it depends on, or in the base."""
        path, here = _path(target), (GRID, "derive", target)
        fields = [_path(name) for name in _PLACEHOLDER.findall(template)]
        owners = [axis for axis in self.axes if any(name in axis.places for name in fields)]
        if path == NAME and any(len(axis.rows) > 1 for axis in owners):
            self.left_out[here] = _NAMED_BY_FILE
            return
        axis = self._merged(owners) if owners else _Axis("zip", target, [{}])
        self.used.update(fields)
        for row in axis.rows:
            text = template
            for field_path in fields:
                value = row[field_path] if field_path in row else _at(self.base, field_path)
                if value is None or value == _NO_VALUE:
                    self.left_out[here] = f"its {{{dotted(field_path)}}} names no value; write out what it makes"
                    return
                text = text.replace(f"{{{dotted(field_path)}}}", str(value))
            row[path] = text
        axis.places[path] = here
        if not owners:
            self._leave_strays_out(axis)
            self._set(axis.rows[0], axis.places)

    def _leave_strays_out(self, axis: _Axis) -> None:
        """Take the keys out of an axis that lead to no entry of a list."""
        for path in [path for path in axis.places if not _leads_somewhere(self.base, path)]:
            self.left_out[axis.places.pop(path)] = unknown(path)
            for row in axis.rows:
                row.pop(path, None)

    def _merged(self, axes: list[_Axis]) -> _Axis:
        """One axis in place of several, with a row for each combination of theirs."""
        if len(axes) == 1:
            return axes[0]
        rows = [dict(item for row in rows for item in row.items()) for rows in product(*(axis.rows for axis in axes))]
        places = {path: place for axis in axes for path, place in axis.places.items()}
        merged = _Axis("zip", "_".join(axis.name for axis in axes), rows, places)
        self.axes = [merged if axis is axes[0] else axis for axis in self.axes if axis not in axes[1:]]
        return merged


def _mapping(value: JsonValue, here: KeyPath, what: str = "it is a mapping") -> JsonObject:
    if not isinstance(value or {}, dict):
        raise ConfigError(f"{dotted(here)}: {found(value)}; {what}")
    return value if isinstance(value, dict) else {}


def _listed(value: JsonValue, here: KeyPath) -> list[JsonValue]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{dotted(here)}: {found(value)}; it lists values")
    return value


def _broadcast(name: str, group: JsonValue) -> _Axis:
    here: KeyPath = (GRID, "broadcast", name)
    spec = _mapping(group, here, "it has paths and values")
    paths = [_path(str(key)) for key in _listed(spec.get("paths"), (*here, "paths"))]
    values = _listed(spec.get("values"), (*here, "values"))
    places: dict[KeyPath, KeyPath] = {path: (*here, "paths", place) for place, path in enumerate(paths)}
    return _Axis("broadcast", name, [dict.fromkeys(paths, value) for value in values], places)


def _zipped(name: str, group: JsonValue) -> _Axis:
    here: KeyPath = (GRID, "zip", name)
    axis = _Axis("zip", name, [])
    for number, entry in enumerate(_listed(group, here)):
        row = _mapping(entry, (*here, number), "a row is a mapping of keys to values")
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


def _at(value: JsonValue, path: KeyPath) -> JsonValue:
    return value_at(value, [*map(str, path)])


def _leads_somewhere(value: JsonValue, path: KeyPath) -> bool:
    """Whether a value can be set at a path: keys can be new, entries of lists are there already."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif isinstance(value, list) or isinstance(part, int):
            return False
        else:
            value = None
    return True


def _put(value: JsonObject, path: KeyPath, new: JsonValue) -> None:
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


class _Ours:
    """The values of our file by path, its grid among them, and comments on some."""

    def __init__(self, theirs: _Theirs, source: Path, folder: Path) -> None:
        self._theirs = theirs
        self._source, self._folder = source.resolve(), folder.resolve()
        self._missing: list[str] = []
        self._varied: set[KeyPath] = set()
        """The keys that our grid sets."""
        self.comments: dict[KeyPath, str] = {}
        self._base = self._carried(theirs.base, theirs.places)
        self.values = dict(self._base)
        for axis in theirs.axes:
            self._vary(axis)
        for path, value in self._defaults().items():
            if path not in self._varied:
                self.values.setdefault(path, value)
        texts = (path for path, value in self.values.items() if path[-1] == "demographics" and isinstance(value, str))
        if (first := next(texts, None)) is not None:
            self.comments[first] = 'a text is shown as it is; {race: black} reads "a black doctor", as in mac-fairness'
        if self._missing:
            text = f"not found from {source}: {', '.join(dict.fromkeys(self._missing))}; put the files there"
            self.comments[QUESTIONS if QUESTIONS in self.values else (GRID,)] = text

    def _carried(self, values: JsonObject, places: Mapping[KeyPath, KeyPath]) -> _Row:
        """What a file of theirs without a grid becomes; reasons are kept for what is left out."""
        context = self._context(values)
        carried: _Row = {}
        for path, value in _leaves(values, (), context.backends):
            above = (path[:size] for size in range(len(path), 0, -1))
            place = next((places[key] for key in above if key in places), path)
            rule = rule_of(path, context.backends)
            if rule is None:
                if value is not None or path not in _SECTIONS_OF_THEIRS:
                    self._leave_out(place, unknown(path))
                continue
            try:
                for key, ours in rule(context, path, value):
                    if (other := carried.setdefault(key, ours)) != ours:
                        text = f"another key sets our {dotted(key)} to {other!r} already; write the one you want"
                        self._leave_out(place, text)
            except LeftOutError as reason:
                if path not in self._theirs.used:
                    self._leave_out(place, str(reason))
        return carried

    def _leave_out(self, place: KeyPath, reason: str) -> None:
        self._theirs.left_out.setdefault(place, reason)

    def _context(self, values: JsonObject) -> Context:
        agents, definitions = values.get("agent_definitions"), values.get("model_definitions")
        models = {
            place: str(agent["model"])
            for place, agent in enumerate(agents if isinstance(agents, list) else ())
            if isinstance(agent, dict) and "model" in agent
        }
        backends = {
            name: str(definition["backend"])
            for name, definition in (definitions.items() if isinstance(definitions, dict) else ())
            if isinstance(definition, dict) and "backend" in definition
        }
        return Context(
            backends=backends,
            models=models,
            api={
                name: api
                for name in backends
                if isinstance(api := _at(values, ("model_definitions", name, "api_config")), dict)
            },
            rounds=_at(values, ("conversation_config", "max_rounds")),
            find=self._find,
        )

    def _find(self, name: str) -> str:
        """A file of questions, which theirs names from the root of their repository, as our file names it."""
        above = self._source.parents
        root = next((parent for parent in above if (parent / name).is_file()), None)
        if root is None:
            root = next((parent.parent for parent in above if parent.name == "config"), self._source.parent)
            self._missing.append(name)
        return name if Path(name).is_absolute() else Path(os.path.relpath(root / name, self._folder)).as_posix()

    def _vary(self, axis: _Axis) -> None:
        """Write an axis, as far as its rows differ here too."""
        rows = []
        for row in axis.rows:
            applied = deepcopy(self._theirs.base)
            for path, value in row.items():
                _put(applied, path, deepcopy(value))
            rows.append(self._carried(applied, {**self._theirs.places, **axis.places}))
        if {row.pop(NAME, None) for row in rows} != {self._base.get(NAME)}:
            named = next(place for path, place in axis.places.items() if path == NAME[: len(path)])
            self._theirs.left_out[named] = _NAMED_BY_FILE
        base = {path: value for path, value in self._base.items() if path != NAME}
        known = dict.fromkeys(chain(*rows, base))
        keys = [key for key in known if any(row.get(key, ...) != base.get(key, ...) for row in rows)]
        full = [{key: row[key] if key in row else _default(key) for key in keys} for row in rows]
        kept: dict[str, _Row] = {}
        for row in full:
            essence = {dotted(key): value for key, value in row.items() if _changes_results(key)}
            kept.setdefault(json.dumps(essence, sort_keys=True), row)
        chosen = list(kept.values())
        varied = [key for key in keys if any(row[key] != chosen[0][key] for row in chosen)]
        if (lost := len(full) - len(chosen)) and keys:
            text = f"{lost} of its {len(full)} rows differ from others in nothing that changes results; they are left"
            self._leave_out(next(iter(axis.places.values())), f"{text} out")
        self.values |= {key: value for key, value in chosen[0].items() if key not in varied}
        self._varied.update(varied)
        if varied:
            self._place(axis, varied, chosen)

    def _place(self, axis: _Axis, keys: list[KeyPath], rows: list[_Row]) -> None:
        """Write an axis in the form that it had, as far as that still fits."""
        name = name_of(axis.name) or "group"
        if len(keys) == 1 and axis.kind != "broadcast":
            self.values[GRID, "sweep", dotted(keys[0])] = [row[keys[0]] for row in rows]
        elif axis.kind == "broadcast" and all(row[key] == row[keys[0]] for row in rows for key in keys):
            group: JsonObject = {"paths": [dotted(key) for key in keys], "values": [row[keys[0]] for row in rows]}
            self.values[GRID, "broadcast", name] = group
        else:
            self.values[GRID, "zip", name] = [{dotted(key): row[key] for key in keys} for row in rows]

    def _defaults(self) -> _Row:
        """What their runner does in any case."""
        defaults: _Row = {NAME: name_of(self._source.stem) or "imported", **_DEFAULTS}
        backends = {
            path[1]: str(backend)
            for path, backend in self.values.items()
            if path[0] == "model_definitions" and path[2:] == ("backend",)
        }
        for model, backend in backends.items():
            section = ("model_definitions", model)
            for key, value in _ENGINE_DEFAULTS.get(backend, {}).items():
                defaults[*section, *key.split(".")] = value
            urls = ((*section, f"{backend}_config", key) for key in ("base_url", "base_urls"))
            if backend in _KEY_VARIABLES and not any(url in self.values for url in urls):
                defaults[*section, f"{backend}_config", "api_key_env"] = _KEY_VARIABLES[backend]
        for path, name in self.values.items():
            if path[0] == "agent_definitions" and path[-1] == "model" and backends.get(str(name)) == "anthropic":
                defaults[*path[:2], "thinking"] = False
        return defaults


def _default(path: KeyPath) -> JsonValue:
    """The value of a key in a row that does not set it."""
    known = place_at(Experiment, path).field
    default: JsonValue = None if known is None or known.is_required() else known.get_default()
    return _DEFAULTS.get(path, default)


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


def _changes_results(path: KeyPath) -> bool:
    """Whether combinations that differ in this key are two experiments; of questions, the content counts."""
    return path[:2] == QUESTIONS or bearing_of(Experiment, path) is not RUNTIME
