"""What must hold between the settings of a discussion and its agents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from mac_runner.config.experiment import Experiment
from mac_runner.environments.discussion.settings import DISCUSSION_ROLES, DiscussionConfig, RoutingStrategy
from mac_runner.problems import Problem, suggestion
from mac_runner.section import KeyPath

_ROUTING: Final[KeyPath] = ("discussion", "routing_strategy")


def discussion_problems(experiment: Experiment, discussion: DiscussionConfig) -> Iterator[Problem]:
    """Every rule that an experiment in the environment `discussion` breaks."""
    if not discussion.questions and not discussion.topics:
        yield Problem(("discussion", "questions"), "is missing; name a JSONL file of questions, or list topics")
    if discussion.questions and discussion.topics:
        yield Problem(("discussion", "topics"), "stands beside questions; keep one of the two")
    if discussion.stopping.min_rounds > discussion.max_rounds:
        path = ("discussion", "stopping", "min_rounds")
        yield Problem(path, f"is more than max_rounds, which is {discussion.max_rounds}; lower it")
    yield from _roles(experiment)
    yield from _routing(experiment, discussion.routing_strategy)


def _roles(experiment: Experiment) -> Iterator[Problem]:
    roles = {agent.agent_id: agent.role for agent in experiment.agent_definitions}
    judges = [agent_id for agent_id, role in roles.items() if role == "judge"]
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index)
        if agent.role not in DISCUSSION_ROLES:
            hint = suggestion(agent.role, DISCUSSION_ROLES)
            yield Problem((*path, "role"), f"the environment 'discussion' has no role {agent.role!r}{hint}")
        waits_for = agent.role_specific_config.speak_after_within_round
        if agent.role == "judge" and not any(roles.get(other) == "participant" for other in waits_for):
            key = (*path, "role_specific_config", "speak_after_within_round")
            yield Problem(
                key, "names no participant, so the judge has nobody to judge; list those whose answers it hears"
            )
        if agent.agent_id in judges[1:]:
            yield Problem((*path, "role"), f"{judges[0]!r} is the judge already; a discussion has one at most")
    if "participant" not in roles.values():
        yield Problem(("agent_definitions",), "hold no agent with the role 'participant'; nobody would answer")


def _routing(experiment: Experiment, routing: RoutingStrategy) -> Iterator[Problem]:
    ids = [agent.agent_id for agent in experiment.agent_definitions]
    if routing.topology == "star" and routing.hub is None:
        yield Problem((*_ROUTING, "hub"), "is missing; a star needs the agent in its middle")
    if routing.hub is not None:
        yield from _unknown((*_ROUTING, "hub"), [routing.hub], ids, is_list=False)
    if routing.topology == "groups" and not routing.groups:
        yield Problem((*_ROUTING, "groups"), "is missing; name the groups and their members")
    for name, members in routing.groups.items():
        yield from _unknown((*_ROUTING, "groups", name), members, ids)
    seen: dict[str, str] = {}
    for name, members in routing.channels.items():
        # A reply names a channel in small letters and without punctuation.
        plain = re.sub(r"[._-]+", "_", name.casefold())
        if plain in seen:
            yield Problem((*_ROUTING, "channels", name), f"reads like the channel {seen[plain]!r}; rename one of them")
        seen[plain] = name
        yield from _unknown((*_ROUTING, "channels", name), members, ids)
        if len(set(members)) < 2:
            yield Problem(
                (*_ROUTING, "channels", name), "has fewer than two members; nobody could read what one writes"
            )
    for index, agent in enumerate(experiment.agent_definitions):
        path = ("agent_definitions", index, "role_specific_config", "visible_to")
        yield from _unknown(path, agent.role_specific_config.visible_to or (), ids)


def _unknown(path: KeyPath, named: Iterable[str], ids: Iterable[str], *, is_list: bool = True) -> Iterator[Problem]:
    for place, name in enumerate(named):
        if name not in ids:
            yield Problem((*path, place) if is_list else path, f"there is no agent {name!r}{suggestion(name, ids)}")
