"""What changed between two resolved configs, and whether the run is still the same run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mac_runner.config.experiment import Experiment
from mac_runner.config.section import IDENTITY, KeyPath, bearing_of
from mac_runner.types import JsonObject, JsonValue


class Difference(NamedTuple):
    """One field with both its values; None stands for a field or entry that is not there."""

    path: str
    old: JsonValue
    new: JsonValue


class IdentityDiff(NamedTuple):
    """All that differs: with anything in `identity` the results would not be the same run's."""

    identity: tuple[Difference, ...]
    runtime: tuple[Difference, ...]


def differences(old: JsonObject, new: JsonObject) -> IdentityDiff:
    """Compare two resolved configs field by field.

    Agents are matched by `agent_id`; one added, removed or moved is a difference of identity, as is a field that
    this version does not know.
    """
    found = [(bearing_of(Experiment, path), difference) for path, difference in _walk((), old, new)]
    return IdentityDiff(
        identity=tuple(difference for bearing, difference in found if bearing is IDENTITY),
        runtime=tuple(difference for bearing, difference in found if bearing is not IDENTITY),
    )


def _walk(path: KeyPath, old: JsonValue, new: JsonValue) -> Iterator[tuple[KeyPath, Difference]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys((*old, *new)):
            yield from _walk((*path, key), old.get(key), new.get(key))
    elif path == ("agent_definitions",):
        old_agents, new_agents = _by_id(old), _by_id(new)
        if list(old_agents) != list(new_agents):
            yield path, Difference(_dotted(path), list(old_agents), list(new_agents))
        for agent_id in (known for known in old_agents if known in new_agents):
            yield from _walk((*path, agent_id), old_agents[agent_id], new_agents[agent_id])
    elif not _is_same(old, new):
        yield path, Difference(_dotted(path), old, new)


def _by_id(agents: JsonValue) -> Mapping[str, JsonValue]:
    entries = agents if isinstance(agents, list) else []
    return {str(entry.get("agent_id")): entry for entry in entries if isinstance(entry, dict)}


def _is_same(old: JsonValue, new: JsonValue) -> bool:
    """Equality in which 1 is not true: Python takes them for equal, a reader of the file does not."""
    return old == new and isinstance(old, bool) == isinstance(new, bool)


def _dotted(path: KeyPath) -> str:
    return ".".join(str(part) for part in path)
