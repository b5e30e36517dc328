"""Which engines the combinations of a grid need, and which of them share one.

Two models are one engine when their resolved definitions are equal, whatever the combinations call them; a scripted
player is moreover one by the program that plays. An engine is called after the first model that it serves, with a
digest of its definition behind it where several bear that name.

Engines that hold their model in this machine's memory are kept to as few at a time as the combinations allow:
combinations that need the same ones form a phase, and a phase's engines are closed before those of the next one start.
Everything else runs in the first phase, side by side.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mac_runner.backends import Backend
from mac_runner.backends.factory import build_backend
from mac_runner.cli.grid.parts import Part
from mac_runner.cli.locating import LocatedBackend, Refusals
from mac_runner.clock import Clock
from mac_runner.config import AgentDefinition, Loaded, ModelDefinition
from mac_runner.environments.base import Policy
from mac_runner.registry import backend_specs


class _Key(NamedTuple):
    """What makes two models the same engine."""

    definition: str
    policy: Policy | None


@dataclass(slots=True, kw_only=True)
class Engine:
    """One engine, the models that it serves, and all agents that they speak for.

    `model` is what the first of these models is called where it is `loaded`, and `name` what the engine is called.
    """

    name: str
    model: str
    loaded: Loaded
    definition: ModelDefinition
    policy: Policy | None
    agents: dict[str, AgentDefinition] = field(default_factory=dict)

    @property
    def holds_memory(self) -> bool:
        """Whether it takes this machine's memory."""
        return backend_specs()[self.definition.backend].holds_memory

    def build(self, clock: Clock, say: Callable[[str], None], *, is_pulling: bool) -> Backend:
        """The backend, not started. What it has to `say` is told apart from what others of that model have."""

        def policy_of(_name: str) -> Policy:
            assert self.policy is not None, "only a scripted model asks for a policy, and it has one"
            return self.policy

        backend = build_backend(
            self.model,
            self.definition,
            agents=tuple(agent.model_copy(update={"model": self.model}) for agent in self.agents.values()),
            policy_of=policy_of,
            clock=clock,
            say=say if self.name == self.model else lambda line: say(f"{self.name}: {line}"),
            can_pull=is_pulling,
        )
        return LocatedBackend(backend, self.loaded, self.model)


class Phase(NamedTuple):
    """Combinations that run together, and the engines that are up meanwhile."""

    parts: tuple[Part, ...]
    engines: tuple[Engine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlan:
    """The engines of some combinations. `served` names for each of them, by slug, the engine of each of its models."""

    engines: Mapping[str, Engine]
    served: Mapping[str, Mapping[str, str]]

    def phases(self, parts: Iterable[Part]) -> list[Phase]:
        """The combinations in the order in which they run."""
        groups: dict[frozenset[str], list[Part]] = {}
        for part in parts:
            names = frozenset(name for name in self.served[part.slug].values() if self.engines[name].holds_memory)
            groups.setdefault(names, []).append(part)
        free = groups.pop(frozenset(), [])
        joined = list(groups.values()) or [[]]
        joined[0] += free
        return [Phase(tuple(group), self._of(group)) for group in joined if group]

    def _of(self, parts: Iterable[Part]) -> tuple[Engine, ...]:
        names = dict.fromkeys(name for part in parts for name in self.served[part.slug].values())
        return tuple(self.engines[name] for name in names)


def plan_engines(
    parts: Sequence[Part], of_all: Sequence[Part], clock: Clock, say: Callable[[str], None], *, is_pulling: bool
) -> EnginePlan:
    """The engines of `parts`, named so that each has one name whichever part `of_all` is left to do.

    Raises ConfigError for a setting that one of them cannot honour, with its place in the file.
    """
    found: dict[_Key, Engine] = {}
    served: dict[str, dict[str, _Key]] = {}
    checked: set[tuple[_Key, str]] = set()
    refusals = Refusals(len(of_all))
    numbers = {part.slug: number for number, part in enumerate(of_all, start=1)}
    for part in parts:
        setup = part.setup()
        keys = served[part.slug] = {}
        for name, definition in part.experiment.model_definitions.items():
            agents = {a.model_dump_json(): a for a in part.experiment.agent_definitions if a.model == name}
            key = _Key(definition.model_dump_json(), None)
            with refusals.of(numbers[part.slug]):
                if (player := backend_specs()[definition.backend].policy(definition.settings)) is not None:
                    key = _Key(key.definition, setup.policy(name, player))
                if (key, "".join(agents)) not in checked:
                    # Built to be checked with the settings of this combination, and with its places in the file.
                    checked.add((key, "".join(agents)))
                    setup.backend(name, definition, clock, say, is_pulling=is_pulling)
            keys[name] = key
            engine = found.setdefault(
                key, Engine(name=name, model=name, loaded=setup.loaded, definition=definition, policy=key.policy)
            )
            engine.agents |= agents
    refusals.tell()
    _tell_apart(found.values(), of_all)
    return EnginePlan(
        engines={engine.name: engine for engine in found.values()},
        served={slug: {name: found[key].name for name, key in keys.items()} for slug, keys in served.items()},
    )


def _tell_apart(engines: Iterable[Engine], parts: Iterable[Part]) -> None:
    """Give engines whose models are called alike a digest behind the name; no model's name holds a `#`."""
    definitions: dict[str, set[str]] = {}
    for part in parts:
        for name, definition in part.experiment.model_definitions.items():
            definitions.setdefault(name, set()).add(definition.model_dump_json())
    named: Counter[str] = Counter()
    for engine in engines:
        if len(definitions[engine.name]) > 1:
            digest = hashlib.blake2b(engine.definition.model_dump_json().encode(), digest_size=2).hexdigest()
            engine.name = f"{engine.name}#{digest}"
        named[engine.name] += 1
        if named[engine.name] > 1:
            # One definition, and another program that plays by its name: environments may differ too.
            engine.name = f"{engine.name}#{named[engine.name]}"
