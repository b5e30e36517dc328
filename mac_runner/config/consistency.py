"""What must hold between the fields of an experiment, each of which is right by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from mac_runner.config.discussion_consistency import discussion_problems
from mac_runner.config.experiment import DISCUSSION_ENVIRONMENT, ECHO_ENVIRONMENT, GAME_ENVIRONMENT, Experiment
from mac_runner.config.model_definition import BACKENDS, ModelDefinition
from mac_runner.config.problems import Problem, suggestion

_SECTIONS = (
    ("game", GAME_ENVIRONMENT, None),
    ("discussion", DISCUSSION_ENVIRONMENT, "questions or topics"),
    ("echo", ECHO_ENVIRONMENT, "rounds"),
)
"""The sections that belong to one environment each, and what that cannot do without."""


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
        key = f"{backend}_config"
        is_given = getattr(definition, key) is not None
        if backend == definition.backend and not is_given:
            yield Problem((*path, key), f"is missing; the backend {backend!r} is set up by it")
        elif backend != definition.backend and is_given:
            text = f"belongs to another backend; this entry has the backend {definition.backend!r}"
            yield Problem((*path, key), f"{text}, set up by {definition.backend}_config")


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
    environment = experiment.conversation_config.environment
    given = {section for section, _, _ in _SECTIONS if getattr(experiment, section) is not None}
    for section, owner, need in _SECTIONS:
        if need and owner == environment and section not in given:
            yield Problem((section,), f"is missing; the environment {owner!r} needs its {need}")
    if environment == DISCUSSION_ENVIRONMENT and experiment.discussion is not None:
        yield from discussion_problems(experiment, experiment.discussion)
    for section, owner, _ in _SECTIONS:
        if section in given and owner != environment:
            text = f"belongs to the environment {owner!r}; this experiment has the environment {environment!r}"
            yield Problem((section,), text)
    ids = dict.fromkeys(agent.agent_id for agent in experiment.agent_definitions)
    for agent_id in (experiment.game.seats or ()) if experiment.game else ():
        if agent_id not in ids:
            yield Problem(("game", "seats", agent_id), f"there is no agent {agent_id!r}{suggestion(agent_id, ids)}")
