"""What must hold between the fields of an experiment, each of which is right by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from mac_runner.config.experiment import Experiment
from mac_runner.config.model_definition import BACKENDS, ModelDefinition, section_key
from mac_runner.problems import Problem, suggestion
from mac_runner.registry import environment_specs


def inconsistencies(experiment: Experiment) -> Iterator[Problem]:
    """Every rule between fields that `experiment` breaks."""
    for name, definition in experiment.model_definitions.items():
        yield from _backend_sections(name, definition)
    yield from _agents(experiment)
    yield from _waiting(experiment)
    yield from _environment(experiment)


def _backend_sections(name: str, definition: ModelDefinition) -> Iterator[Problem]:
    path = ("model_definitions", name)
    for backend in BACKENDS:
        key = section_key(backend)
        is_given = getattr(definition, key) is not None
        if backend == definition.backend and not is_given:
            yield Problem((*path, key), f"is missing; the backend {backend!r} is set up by it")
        elif backend != definition.backend and is_given:
            text = f"belongs to another backend; this entry has the backend {definition.backend!r}"
            yield Problem((*path, key), f"{text}, set up by {section_key(definition.backend)}")


def _agents(experiment: Experiment) -> Iterator[Problem]:
    counts: Counter[str] = Counter()
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index)
        counts[agent.agent_id] += 1
        if counts[agent.agent_id] == 2:
            yield Problem((*path, "agent_id"), f"{agent.agent_id!r} is taken by another agent; each needs its own")
        if agent.model not in experiment.model_definitions:
            known = suggestion(agent.model, experiment.model_definitions)
            yield Problem((*path, "model"), f"there is no model definition {agent.model!r}{known}")


def _waiting(experiment: Experiment) -> Iterator[Problem]:
    """Unknown ids first; a cycle is looked for among the known ones."""
    waits = {
        agent.agent_id: agent.role_specific_config.speak_after_within_round for agent in experiment.agent_definitions
    }
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index, "role_specific_config", "speak_after_within_round")
        for place, other in enumerate(agent.role_specific_config.speak_after_within_round):
            if other not in waits:
                yield Problem((*path, place), f"there is no agent {other!r}{suggestion(other, waits)}")
    if cycle := _cycle(waits):
        index = next(i for i, agent in enumerate(experiment.agent_definitions) if agent.agent_id == cycle[0])
        path = ("agent_definitions", index, "role_specific_config", "speak_after_within_round")
        yield Problem(path, f"agents wait for each other: {' -> '.join(cycle)}; nobody could begin")


def _cycle(waits: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """A cycle as `a, b, a`, or nothing. Walked with a stack of its own: the chain may be as long as the file."""
    done: set[str] = set()
    for start in waits:
        trail: dict[str, Iterator[str]] = {} if start in done else {start: iter(waits[start])}
        while trail:
            agent = next(reversed(trail))
            other = next(trail[agent], None)
            if other is None:
                done.add(agent)
                del trail[agent]
            elif other in trail:
                members = list(trail)
                return (*members[members.index(other) :], other)
            elif other not in done and other in waits:
                trail[other] = iter(waits[other])
    return ()


def _environment(experiment: Experiment) -> Iterator[Problem]:
    """The rules of its environment, then sections that belong to others."""
    environment, settings, specs = experiment.conversation_config.environment, experiment.settings, environment_specs()
    spec = specs.get(environment)
    if spec is not None and settings is not None:
        yield from spec.check(experiment, settings)
    elif spec is not None and spec.needs:
        yield Problem((spec.section,), f"is missing; the environment {environment!r} needs its {spec.needs}")
    for name, other in specs.items():
        if name != environment and getattr(experiment, other.section) is not None:
            text = f"belongs to the environment {name!r}; this experiment has the environment {environment!r}"
            yield Problem((other.section,), text)
