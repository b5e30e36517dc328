"""What recorded experiments say: what changed between two of them, what replies were held to, what others may see."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from pydantic import ValidationError
from pydantic_core import PydanticUndefined, to_jsonable_python

from mac_runner.config.document import as_object
from mac_runner.config.experiment import Experiment, decoding_of, reply_form_of
from mac_runner.problems import dotted
from mac_runner.registry import BACKENDS, environment_specs
from mac_runner.secrecy import says_secret
from mac_runner.section import IDENTITY, RUNTIME, Bearing, File, KeyPath, bearing_of, place_at
from mac_runner.spec import ENVIRONMENT_KEY, MODELS, PLUGINS, SETTINGS
from mac_runner.types import JsonObject, JsonValue

_EDITION: Final = "edition"
"""The key of what agents read and how replies are taken, as far as no setting says so."""
_NAME: Final = ("experiment_metadata", "experiment_name")


class Difference(NamedTuple):
    """One field with both its values; None: the field or entry is not there."""

    path: str
    old: JsonValue
    new: JsonValue
    file: str = ""
    """The file whose digest the field is."""


class IdentityDiff(NamedTuple):
    """All that differs: with anything in `identity` the results would not be the same run's."""

    identity: tuple[Difference, ...]
    runtime: tuple[Difference, ...]


def foreign_edition(config: JsonObject) -> Difference | None:
    """The edition of conversations that a recorded config has, and that of this version, where they differ."""
    for spec in environment_specs().values():
        key = (spec.section, _EDITION)
        section, known = config.get(spec.section), spec.settings.model_fields.get(_EDITION)
        if known is not None and isinstance(section, dict) and (found := section.get(_EDITION)) != known.default:
            return Difference(dotted(key), found, known.default)
    return None


def differences(old: JsonObject, new: JsonObject) -> IdentityDiff:
    """Compare two resolved configs field by field.

    Agents are matched by `agent_id`; one added, removed or moved is a difference of identity, as is a field that
    this version does not know. A field that is missing has its default: an earlier version did not know it.
    """
    runtime = _runtime_settings(old) & _runtime_settings(new)
    found = [(_bearing_of(path, runtime), difference) for path, difference in _walk((), old, new, {})]
    return IdentityDiff(
        identity=tuple(difference for bearing, difference in found if bearing is not RUNTIME),
        runtime=tuple(difference for bearing, difference in found if bearing is RUNTIME),
    )


def identity_of(experiment: Experiment) -> str:
    """A digest of all in an experiment that its results depend on, in hexadecimal; without its name.

    Default values are left out. So the digest stays the same when keys are added to the format, and leaving a key out
    equals writing its default. So is what a run records of its version, which no file says.
    """
    written = experiment.model_dump(mode="json", exclude_defaults=True)
    for path in _runtime_settings(written):
        written = as_object(_without(written, path))
    leaves = [(path, value) for path, value in _leaves((), written) if path != _NAME]
    text = json.dumps(sorted([dotted(path), json.dumps(value, sort_keys=True)] for path, value in leaves))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _runtime_settings(config: JsonObject) -> set[tuple[str, ...]]:
    """The settings of plug-ins that are not part of the identity, as their code says; `*` is any entry."""
    section, name = ENVIRONMENT_KEY
    users: list[tuple[tuple[str, ...], JsonValue]] = [((SETTINGS,), as_object(config.get(section)).get(name))]
    for model, definition in as_object(config.get(MODELS)).items():
        users.append(((MODELS, model, SETTINGS), as_object(definition).get("backend")))
    records = as_object(config.get(PLUGINS))
    return {
        (*path, *str(key).split("."))
        for path, used in users
        if isinstance(used, str) and isinstance(keys := as_object(records.get(used)).get("runtime_settings"), list)
        for key in keys
    }


def _bearing_of(path: KeyPath, runtime: Collection[KeyPath]) -> Bearing:
    """The class of the field at a path; of the settings of a plug-in, as it was recorded."""
    if path[0] == "metric_plugins":
        return RUNTIME  # A metric that is added is a whole entry.
    if any(_leads_to(keys, path) for keys in runtime):
        return RUNTIME
    return bearing_of(Experiment, path)


def _leads_to(keys: KeyPath, path: KeyPath) -> bool:
    """Whether the keys are those of a path or of something above it."""
    return len(keys) <= len(path) and all(key in ("*", str(part)) for key, part in zip(keys, path, strict=False))


def _without(value: JsonValue, keys: Sequence[str]) -> JsonValue:
    """The value without those that the keys lead to."""
    key, *below = keys
    if isinstance(value, list):
        return [_without(each, below) for each in value] if key == "*" and below else value
    if not isinstance(value, dict):
        return value
    return {
        name: _without(each, below) if key in ("*", name) else each
        for name, each in value.items()
        if below or key not in ("*", name)
    }


def _leaves(path: KeyPath, value: JsonValue) -> Iterator[tuple[KeyPath, JsonValue]]:
    """The identity fields at or below `path`, as far as they are written."""
    if _is_leaf(path) or not isinstance(value, dict | list):
        if _bearing(path) is IDENTITY:
            yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves((*path, key), part)
    else:
        for index, part in enumerate(value):
            yield from _leaves((*path, index), part)


# A grid asks for the same few paths for each of its combinations.
@lru_cache(maxsize=4096)
def _is_leaf(path: KeyPath) -> bool:
    return place_at(Experiment, path).field is not None


@lru_cache(maxsize=4096)
def _bearing(path: KeyPath) -> Bearing:
    return bearing_of(Experiment, path)


def _walk(path: KeyPath, old: JsonValue, new: JsonValue, beside: JsonObject) -> Iterator[tuple[KeyPath, Difference]]:
    """The differences at or below a path; `beside` is the mapping that `new` is a value of."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            below = (*path, key)
            yield from _walk(below, _value(below, old), _value(below, new), new)
    elif path == ("agent_definitions",):
        old_agents, new_agents = _by_id(old), _by_id(new)
        if list(old_agents) != list(new_agents):
            yield path, Difference(dotted(path), list(old_agents), list(new_agents))
        for agent_id in (known for known in old_agents if known in new_agents):
            yield from _walk((*path, agent_id), old_agents[agent_id], new_agents[agent_id], {})
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and _have_keys((*old, *new)):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _walk((*path, index), one, other, {})
    elif not _is_same(old, new):
        is_content = path[-1] == "sha256" and beside.keys() == File.model_fields.keys()
        yield path, Difference(dotted(path), old, new, str(beside["path"]) if is_content else "")


def _value(path: KeyPath, section: JsonObject) -> JsonValue:
    """The value of the field at `path` in its section, or its default."""
    return section[str(path[-1])] if path[-1] in section else _default(path)


@lru_cache(maxsize=4096)
def _default(path: KeyPath) -> JsonValue:
    """The default of the field at `path`; None for a field that has none, or is not known."""
    section = place_at(Experiment, path[:-1]).section
    field = None if section is None else section.model_fields.get(str(path[-1]))
    default = PydanticUndefined if field is None else field.get_default(call_default_factory=True)
    value: JsonValue = None if default is PydanticUndefined else to_jsonable_python(default)
    return value


def _have_keys(entries: Sequence[JsonValue]) -> bool:
    return any(isinstance(entry, dict | list) for entry in entries)


def _by_id(agents: JsonValue) -> Mapping[str, JsonValue]:
    entries = agents if isinstance(agents, list) else []
    return {str(entry.get("agent_id")): entry for entry in entries if isinstance(entry, dict)}


def _is_same(old: JsonValue, new: JsonValue) -> bool:
    """Equality in which 1 is not true, unlike in Python."""
    return old == new and isinstance(old, bool) == isinstance(new, bool)


def recorded_speakers(config: JsonObject) -> dict[str, str]:
    """By agent definition, its model in a recorded run."""
    agents = _by_id(config.get("agent_definitions")).items()
    return {name: str(agent["model"]) for name, agent in agents if isinstance(agent, dict) and "model" in agent}


def recorded_decoding(config: JsonObject) -> dict[str, JsonObject]:
    """By model, what replies of a recorded run were held to, and the form that prompts taught, if they taught one."""
    try:
        experiment = Experiment.model_validate(config)
        spec = experiment.known_spec
    except ValidationError:
        return {}
    has_forms = spec is not None and bool(spec.reply_forms)
    return {
        name: {
            "constrained_decoding": decoding_of(definition),
            "reply_form": reply_form_of(experiment, definition) if has_forms else None,
        }
        for name, definition in experiment.model_definitions.items()
    }


LEFT_OUT: Final = "(left out)"
_PRIVATE: Final = frozenset({"base_url", "base_urls", "host"})
"""Keys of the sections of backends whose values name machines."""
_ABSOLUTE: Final = re.compile(r"^(?:/|~|[A-Za-z]:[\\/])\S*[\\/](?=[^\\/\s]+$)")
"""The folder of an absolute path."""


def shareable(resolved: JsonObject) -> JsonObject:
    """The recorded experiment with `(left out)` in place of addresses, names of variables, secrets, and folders.

    The settings of a backend that is not built in may hold any of them, so they are left out whole.
    """
    found = {key: _without_folders(value) for key, value in resolved.items()}
    if isinstance(models := found.get(MODELS), dict):
        found[MODELS] = {name: _model(definition) for name, definition in models.items()}
    return found


def _model(definition: JsonValue) -> JsonValue:
    if not isinstance(definition, dict):
        return definition
    if definition.get("backend") not in BACKENDS and definition.get(SETTINGS) is not None:
        definition = {**definition, SETTINGS: LEFT_OUT}
    return {key: _without_private(value) for key, value in definition.items()}


def _without_private(value: JsonValue) -> JsonValue:
    if not isinstance(value, dict):
        return value
    return {key: LEFT_OUT if inner and _is_private(key) else _without_private(inner) for key, inner in value.items()}


def _is_private(key: str) -> bool:
    return key in _PRIVATE or key.endswith("_env") or says_secret(key)


def _without_folders(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return _ABSOLUTE.sub(f"{LEFT_OUT}/", value)
        case dict():
            return {key: _without_folders(inner) for key, inner in value.items()}
        case list():
            return [_without_folders(inner) for inner in value]
        case _:
            return value
