"""Drafts: the values of an experiment file with the origin of each, resolved to an Experiment.

A draft starts as the file, takes an overlay (the profile) and then single values (`--set`, `--seed`); each step makes a
new draft. Origins travel along, so an error about a value names the place where it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from mac_runner.config.document import YAML_DEPTH_MAX, Written, as_object
from mac_runner.config.experiment import SHORT, Experiment
from mac_runner.config.materials import NamedCode, with_materials
from mac_runner.config.validation import complaints, inconsistencies, own_settings, without_effect
from mac_runner.errors import ConfigError
from mac_runner.flat import value_at
from mac_runner.problems import CONFIG_PROBLEMS_MAX, MaterialError, Problem, config_error, dotted, suggestion
from mac_runner.section import RECORDED, KeyPath, Opener, leaf_fields
from mac_runner.types import JsonObject, JsonValue

REPLACED_WHOLE: Final = ("model_definitions",)
"""Mappings whose entries an overlay replaces whole: half of each of two engines is not an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Values so far, and for each path that was written somewhere, where."""

    value: JsonObject
    origins: Mapping[KeyPath, str]
    """Where each of them was written: in the file, or by a flag."""

    def locate(self, path: KeyPath) -> str:
        """Where the value at `path` was written; for one that was not, where its nearest parent was."""
        lengths = range(len(path), -1, -1)
        return next((self.origins[path[:length]] for length in lengths if path[:length] in self.origins), "")

    def said(self, path: KeyPath) -> str:
        """The key of a path as it was written: the short one, where that is at the place of the value."""
        for key, path_in_full in SHORT.items():
            if path == path_in_full and self.origins.get((key,)) == self.locate(path):
                return key
        return dotted(path)


def draft_of(value: JsonObject, written: Written, prefix: KeyPath = ()) -> Draft:
    """The part of a file below `prefix`, whose value is `value`. Raises ConfigError for a key that is there twice."""
    start, source = len(prefix), written.name
    origins = {path[start:]: f"{source}:{line}" for path, line in written.lines.items() if path[:start] == prefix}
    origins.setdefault((), source)  # What is written in Python has no lines.
    draft = Draft(value=value, origins=origins)
    for key, path in SHORT.items():
        if key in value:
            draft = _in_full(draft, key, path)
    return draft


def _in_full(draft: Draft, key: str, path: KeyPath) -> Draft:
    """The draft with the key that a short one is short for."""
    origin = draft.locate((key,))
    rest = {other: entry for other, entry in draft.value.items() if other != key}
    section = rest.get(str(path[0]))
    if path[1] in as_object(section):
        text = f"{dotted(path)} ({draft.locate(path)}) says the same; leave one of the two out"
        raise draft_error(draft, [Problem((key,), text)])
    found = replace(draft, value=rest, origins={**draft.origins, (key,): origin})
    # A section of another form is a problem of its own.
    return with_value(found, path, draft.value[key], origin) if isinstance(section, dict | None) else found


def overlaid(base: Draft, overlay: Draft) -> Draft:
    """`base` with `overlay` over it: mappings key by key, lists and the entries of REPLACED_WHOLE as wholes."""
    replaced: set[KeyPath] = set()
    value = _merged(base.value, overlay.value, (), replaced)
    kept = {path: origin for path, origin in base.origins.items() if not _is_below(path, replaced)}
    new = {path: origin for path, origin in overlay.origins.items() if _is_below(path, replaced)}
    return Draft(value=value, origins={**kept, **new})


def with_value(draft: Draft, path: KeyPath, value: JsonValue, origin: str) -> Draft:
    """`draft` with `value` at `path`, which `resolve_path` returned; missing mappings on the way are made."""
    origins = {place: at for place, at in draft.origins.items() if place[: len(path)] != path}
    for length in range(1, len(path)):
        origins.setdefault(path[:length], origin)
    origins[path] = origin
    return Draft(value=as_object(_placed(draft.value, path, value)), origins=origins)


def resolve_path(value: JsonValue, key: str) -> KeyPath:
    """The path a dotted `key` names in `value`. Raises ValueError when the path leads nowhere.

    An entry of a list is named by its index or, when it is an agent, by its `agent_id`. A name that holds dots is
    found when an entry has it.
    """
    if key in SHORT:
        return SHORT[key]
    path: list[str | int] = []
    here: JsonValue = value
    parts = key.split(".")
    if parts[0] in SHORT:
        raise ValueError(f"{parts[0]!r} is a single value")
    if not all(parts) or len(parts) > YAML_DEPTH_MAX:
        raise ValueError(f"write the path as section.key, with 1 to {YAML_DEPTH_MAX} parts and none of them empty")
    while parts:
        if isinstance(here, dict):
            size = next((n for n in range(len(parts), 0, -1) if ".".join(parts[:n]) in here), 1)
            name = ".".join(parts[:size])
            if name not in here and len(parts) > 1 and path == list(REPLACED_WHOLE):
                raise ValueError(f"there is no model definition {name!r}{suggestion(name, here)}")
            path.append(name)
            here = here.get(name)
        elif isinstance(here, list):
            index, size = _index(here, parts, path)
            path.append(index)
            here = here[index]
        elif here is None:
            path.append(parts[0])
            size = 1
        else:
            raise ValueError(f"{dotted(tuple(path))} is a single value; it has nothing below it")
        parts = parts[size:]
    return tuple(path)


def _index(entries: list[JsonValue], parts: list[str], path: list[str | int]) -> tuple[int, int]:
    """The index `parts` begin with, and how many of them it took."""
    ids = [str(entry.get("agent_id", "")) if isinstance(entry, dict) else "" for entry in entries]
    for size in range(len(parts), 0, -1):
        if (name := ".".join(parts[:size])) in ids:
            return ids.index(name), size
    indices = [str(index) for index in range(len(entries))]
    if parts[0] in indices:
        return indices.index(parts[0]), 1
    known = [*(name for name in ids if name), *indices]
    raise ValueError(f"{dotted(tuple(path))} has no entry {parts[0]!r}{suggestion(parts[0], known)}")


def _merged(base: JsonObject, overlay: JsonObject, path: KeyPath, replaced: set[KeyPath]) -> JsonObject:
    """`overlay` over `base`; the paths at which a value of the base gave way, or that are new, go to `replaced`."""
    merged = dict(base)
    for key, new in overlay.items():
        old = base.get(key)
        here = (*path, key)
        if isinstance(old, dict) and isinstance(new, dict) and path != REPLACED_WHOLE:
            merged[key] = _merged(old, new, here, replaced)
        else:
            merged[key] = new
            replaced.add(here)
    return merged


def _placed(value: JsonValue, path: KeyPath, new: JsonValue) -> JsonValue:
    if not path:
        return new
    head, rest = path[0], path[1:]
    if isinstance(value, list) and isinstance(head, int):
        return [_placed(entry, rest, new) if index == head else entry for index, entry in enumerate(value)]
    entries = as_object(value)
    return {**entries, str(head): _placed(entries.get(str(head)), rest, new)}


def _is_below(path: KeyPath, tops: Set[KeyPath]) -> bool:
    """Whether `path` is one of `tops` or is somewhere below one."""
    return any(path[:length] in tops for length in range(1, len(path) + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An experiment, the complete config it came from, and where each of its values was written.

    `resolved` has every default filled in, no `profiles`, and under `profile` the one that was chosen;
    `Experiment.model_validate(resolved)` gives the experiment again. `locate` names `file:line` or the flag.
    """

    experiment: Experiment
    resolved: JsonObject
    locate: Callable[[KeyPath], str]


def resolved(draft: Draft, base: Path, cache: dict[str, object]) -> Loaded:
    """The experiment of a draft, with the files it names read, relative to `base`.

    Raises ConfigError with every problem of the first stage that has any. `cache` keeps what is read from files.
    """
    named = NamedCode(draft.value, base, cache)
    draft = replace(draft, value=named.filled())
    problems: Iterable[Problem]
    try:
        experiment = Experiment.model_validate(draft.value, context=Opener(base, cache))
    except ValidationError as failure:
        problems = chain(named.problems, complaints(failure, draft.value))
    else:
        refuse(draft, named.problems or chain(inconsistencies(experiment), without_effect(experiment)))
        try:
            experiment = with_materials(experiment, base, cache)
            return Loaded(experiment=experiment, resolved=experiment.dumped(), locate=draft.locate)
        except MaterialError as fault:
            problems = fault.problems
    # Raised out here, not from the failure: its text repeats values, and one may be a key pasted in the wrong place.
    raise draft_error(draft, problems)


def as_begun(loaded: Loaded, configs: Iterable[JsonObject]) -> Loaded:
    """The experiment as a run goes on with it: what is filled in from this version stays as it began (`RECORDED`).

    Of `configs`, those recorded in its directory, the first counts; none is asked for where nothing is filled in.
    Raises ConfigError as `recorded` does.
    """
    section, settings = loaded.experiment.settings_key, loaded.experiment.spec.settings
    filled_in = [(section, *map(str, path)) for path, field in leaf_fields(settings) if RECORDED in field.metadata]
    config = next(iter(configs), None) if filled_in else None
    draft = Draft(value=loaded.resolved, origins={(): loaded.locate(())})
    for path in filled_in:
        if (began := value_at(config, path)) not in (None, value_at(draft.value, path)):
            draft = with_value(draft, path, began, draft.locate(()))
    if draft.value is loaded.resolved:
        return loaded
    return replace(loaded, experiment=recorded_draft(draft), resolved=draft.value)


def recorded(config: JsonObject, source: str) -> Experiment:
    """The experiment that was resolved to `config`. Raises ConfigError with every problem, each with its key.

    Settings that change nothing are let pass: they did so when the run began.
    """
    return recorded_draft(Draft(value=config, origins={(): source}))


def recorded_draft(draft: Draft) -> Experiment:
    """The experiment of a draft whose files are not read again. Raises ConfigError as `recorded` does."""
    try:
        experiment = Experiment.model_validate(draft.value)
    except ValidationError as failure:
        problems = complaints(failure, draft.value)
    else:
        refuse(draft, [*own_settings(experiment)] or inconsistencies(experiment))
        return experiment
    raise draft_error(draft, problems)


def refuse(draft: Draft, problems: Iterable[Problem]) -> None:
    """Raise ConfigError with the problems, where there are any; no more of them are looked for than it lists."""
    if found := [*islice(problems, CONFIG_PROBLEMS_MAX + 1)]:
        raise draft_error(draft, found)


def draft_error(draft: Draft, problems: Iterable[Problem]) -> ConfigError:
    """The error that lists the problems, each with its place in the file."""
    return config_error(f"{draft.locate(path)}: {draft.said(path)}: {text}" for path, text in problems)
