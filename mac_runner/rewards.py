"""What an outcome says of each agent: its values by agent, and the rewards made of them.

An outcome may hold mappings from the names of its agents to numbers or truth values, such as
`{"payoff": {"Abel": 3, "Cain": 5}}`, and a `winner` or `winners` that names agents.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypeGuard

from mac_runner.errors import ConversationError, boundary
from mac_runner.types import JsonObject, JsonValue

WON: Final = "won"
REWARD: Final = "reward"
"""The one number that the rewards of an agent come to."""
PREFERRED: Final = ("faction_won", WON)
"""The rewards that are a chance to win, in the order in which they are looked for."""
_WINNERS: Final = ("winner", "winners")


class AgentRewards(NamedTuple):
    """The rewards of an agent by name, and what they come to; `total` is None where one of its parts is missing."""

    by_name: Mapping[str, float]
    total: float | None


class Winners(NamedTuple):
    """The agents that an outcome calls winners; `is_draw` where it says that there are none."""

    names: frozenset[str]
    is_draw: bool


def is_number(value: object) -> TypeGuard[bool | int | float]:
    """Whether a value can be averaged: a truth value, or a number that a float can hold."""
    return isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max


def winners_of(outcome: JsonObject, agents: Collection[str]) -> Winners | None:
    """The winners among `agents`; None where `winner` and `winners` are missing or name something else.

    A `winner` of null and an empty list of `winners` are a draw.
    """
    key = next((key for key in _WINNERS if key in outcome), None)
    if key is None:
        return None
    match outcome[key]:
        case None | []:
            return Winners(frozenset(), is_draw=True)
        case str(name) if name in agents:
            return Winners(frozenset({name}), is_draw=False)
        case [*found] if all(isinstance(name, str) and name in agents for name in found):
            return Winners(frozenset(map(str, found)), is_draw=False)
        case _:
            return None


def values_by_agent(outcome: JsonObject, agents: Collection[str]) -> dict[str, dict[str, bool | int | float]]:
    """The mappings of an outcome from names of `agents` to numbers or truth values, by their key.

    An agent whose value is null is left out. A mapping with another key or another value is not of this kind.
    """
    found = {}
    for key, value in outcome.items():
        if isinstance(value, dict) and (of_agents := _numbers(value, agents)):
            found[key] = of_agents
    return found


def _numbers(mapping: Mapping[str, JsonValue], agents: Collection[str]) -> dict[str, bool | int | float]:
    numbers = {name: value for name, value in mapping.items() if is_number(value)}
    is_of_agents = all(name in agents for name in mapping)
    is_numeric = all(value is None or name in numbers for name, value in mapping.items())
    return numbers if is_of_agents and is_numeric else {}


def names_agents(outcome: JsonValue, agents: Collection[str]) -> bool:
    """Whether an outcome says something of single agents."""
    if not isinstance(outcome, dict):
        return False
    return winners_of(outcome, agents) is not None or bool(values_by_agent(outcome, agents))


def of_agents(outcome: JsonObject, agents: Collection[str]) -> dict[str, dict[str, bool | int | float]]:
    """The mappings by agent of an outcome, and `won` of each agent where winners are among `agents`."""
    found = values_by_agent(outcome, agents)
    if WON not in found and agents and (winners := winners_of(outcome, agents)) is not None:
        found[WON] = {name: name in winners.names for name in agents}
    return found


def default_rewards(outcome: JsonObject, agent: str, agents: Collection[str]) -> dict[str, float]:
    """The rewards of an agent in an outcome whose environment does not say them.

    They are its values in the mappings by agent. Winners among `agents` add `won`, unless a mapping has that name.
    """
    return {key: float(of[agent]) for key, of in of_agents(outcome, agents).items() if agent in of}


def preferred(rewards: Iterable[str]) -> str | None:
    """The reward that is a chance to win, else the first; None without any."""
    named = [*rewards]
    return next((name for name in PREFERRED if name in named), next(iter(named), None))


def rewards_of(
    environment: object | None, outcome: JsonObject, agent: str, agents: Collection[str]
) -> dict[str, float]:
    """The rewards of `agent`, one of the `agents` of a finished conversation.

    `environment` is the one that played it, where its code is loaded; None, or one without a method `rewards`, leaves
    it to the results of the outcome's kind, and else to `default_rewards`. Raises ConversationError for rewards that
    are not finite numbers by name.
    """
    method = getattr(environment, "rewards", None)
    if method is None:
        return _recorded_rewards(outcome, agent, agents)
    with boundary(ConversationError, f"{type(environment).__name__}.rewards of {agent!r}"):
        found: object = method(outcome, agent)
    return _checked(found, f"{type(environment).__name__}.rewards of {agent!r}")


def _recorded_rewards(outcome: JsonObject, agent: str, agents: Collection[str]) -> dict[str, float]:
    # The registry holds the environments, and some of them import this module.
    from mac_runner.registry import results_specs

    spec = results_specs().get(str(outcome.get("kind")))
    if spec is None or spec.rewards is None:
        return default_rewards(outcome, agent, agents)
    return dict(spec.rewards(outcome, agent))


def _checked(found: object, where: str) -> dict[str, float]:
    if not isinstance(found, Mapping):
        raise ConversationError(f"{where} returned {type(found).__name__}; return a dict of numbers by name")
    rewards: dict[str, float] = {}
    for name, value in found.items():
        if not isinstance(name, str) or not is_number(value):
            raise ConversationError(f"{where}: {name!r} is {value!r:.60}; a reward is a finite number with a name")
        rewards[name] = float(value)
    return rewards


def rewards_by_agent(
    environment: object | None, transcript: JsonObject, experiment: JsonObject
) -> dict[str, AgentRewards]:
    """The rewards of each agent of an ended conversation; nothing where it failed.

    They are those of `rewards_of` and the shaped ones that the transcript has. `experiment` is that of the run as it
    was recorded: its `rewards.total` has the weight of each in the total. Without weights the total is the reward that
    is called `reward`, else the preferred one.
    """
    outcome, task = transcript.get("outcome"), transcript.get("task")
    listed = task.get("agents") if isinstance(task, dict) else None
    if not isinstance(outcome, dict) or not isinstance(listed, list):
        return {}
    agents = [str(agent["agent_id"]) for agent in listed if isinstance(agent, dict)]
    section = experiment.get("rewards")
    weights = _numbers_of(section.get("total") if isinstance(section, dict) else None)
    shaped = transcript.get("shaped_rewards")
    found = {}
    for agent in agents:
        of_shaped = {name: _numbers_of(of) for name, of in (shaped if isinstance(shaped, dict) else {}).items()}
        by_name = rewards_of(environment, outcome, agent, agents)
        by_name |= {name: of[agent] for name, of in of_shaped.items() if agent in of}
        found[agent] = AgentRewards(by_name, _total(by_name, weights))
    return found


def _numbers_of(mapping: JsonValue) -> dict[str, float]:
    values = mapping if isinstance(mapping, dict) else {}
    return {name: float(value) for name, value in values.items() if is_number(value)}


def _total(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    if not weights:
        name = REWARD if REWARD in rewards else preferred(rewards)
        return None if name is None else rewards[name]
    if any(name not in rewards for name in weights):
        return None
    return math.fsum(weight * rewards[name] for name, weight in weights.items())
