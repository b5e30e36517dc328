"""An ended conversation as its readers see it, and what metrics and shaped rewards make of it.

It is made from a transcript and shares nothing with it: what a reader changes in it changes nothing that is stored.

A metric gives numbers by name, a shaped reward a number for each agent. Both are code of a user: what it raises or
returns wrongly costs its own values alone, and the error is kept beside them. Metrics run between two replies, so a
slow one holds up the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from mac_runner.environments.reading import thoughts
from mac_runner.errors import ConfigError, ConversationError, MacRunnerError, ShortageError, boundary
from mac_runner.plugins import Plugin, place_of, plain_function
from mac_runner.types import FinishReason, JsonObject, Receipt, ReceiptKind, TokenCount


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAgent:
    """One participant: its public name, the entry of `agent_definitions` behind it, its model and its seat."""

    name: str
    definition: str
    model: str
    seat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTurn:
    """One reply, and what the environment made of it.

    `raw` is the reply as the engine gave it. `text` is the reply without its thoughts, and `thought` is the thoughts,
    also those that the engine gave apart.
    """

    key: str
    round: int
    agent: str
    model: str
    step: int
    attempt: int
    raw: str
    text: str
    thought: str
    finish_reason: FinishReason
    receipt: Receipt
    tokens: TokenCount


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedConversation:
    """One conversation that has ended. `outcome` is None where it failed.

    `group` and `sample` are there where each deal is played several times (`samples_per_task`).

    `turns` are in the order of the conversation. `events` are the record of the environment: objects with `when`,
    `text`, `audience` ("all", or a list of names) and `data`.
    """

    task_id: str
    index: int
    seed: int
    environment: str
    status: Literal["finished", "failed"]
    failure: str | None
    agents: tuple[EndedAgent, ...]
    outcome: JsonObject | None
    events: tuple[JsonObject, ...]
    turns: tuple[EndedTurn, ...]
    group: int | None = None
    sample: int = 0

    def copied(self) -> EndedConversation:
        """The same conversation for another reader: what one changes, the other does not see."""
        outcome, *events = _copied([self.outcome, *self.events])
        return replace(self, outcome=outcome, events=tuple(events))

    def turns_of(self, agent: str) -> tuple[EndedTurn, ...]:
        """The turns of one agent, by its public name."""
        return tuple(turn for turn in self.turns if turn.agent == agent)


def ended_conversation(transcript: Mapping[str, Any]) -> EndedConversation:
    """The conversation of a transcript. Raises KeyError or TypeError for something that is not one."""
    task = transcript["task"]
    events = transcript["record"].get("events")
    outcome, events = _copied([transcript["outcome"], events if isinstance(events, list) else []])
    return EndedConversation(
        task_id=task["task_id"],
        index=task["index"],
        seed=task["seed"],
        environment=transcript["environment"],
        status=transcript["status"],
        failure=transcript["failure"],
        agents=tuple(
            EndedAgent(name=agent["agent_id"], definition=agent["definition"], model=agent["model"], seat=agent["seat"])
            for agent in task["agents"]
        ),
        outcome=outcome,
        events=tuple(event for event in events if isinstance(event, dict)),
        turns=tuple(map(_turn, transcript["turns"])),
        group=task.get("group"),
        sample=task.get("sample", 0),
    )


def _turn(turn: Mapping[str, Any]) -> EndedTurn:
    reply, receipt = turn["reply"], turn["receipt"]
    tokens, found = reply["tokens"], thoughts(reply["text"], reply.get("thinking"))
    return EndedTurn(
        key=turn["turn"],
        round=turn["round"],
        agent=turn["agent"],
        model=turn["model"],
        step=turn["step"],
        attempt=turn["attempt"],
        raw=reply["text"],
        text=found.said,
        thought=found.thought,
        finish_reason=FinishReason(reply["finish_reason"]),
        receipt=Receipt(kind=ReceiptKind(receipt["kind"]), detail=receipt["detail"], cause=receipt.get("cause")),
        tokens=TokenCount(
            prompt=tokens["prompt"],
            completion=tokens["completion"],
            cached=tokens.get("timing", tokens).get("cached", 0),
        ),
    )


def _copied(value: list[Any]) -> list[Any]:
    return cast("list[Any]", json.loads(json.dumps(value)))


_METRIC: Final = "a metric is a function `metric(conversation)` that returns a number, or numbers by name"
VALUES_MAX: Final = 200
"""The most values of one metric."""
_VALUE_MAX: Final = 1e150
"""The largest value, either way: its square is still a number."""
_NAME: Final = re.compile(r"[^\s.=<>!~,|][^\s=<>!~,|]{0,79}")
_ERROR_CHARS_MAX: Final = 300

Measure: TypeAlias = Callable[[JsonObject], JsonObject]
"""From the transcript of an ended conversation to what is kept of its metrics (`measured`)."""


class Metric(NamedTuple):
    """A function from an ended conversation to numbers, and the name of its value."""

    name: str
    function: Callable[[EndedConversation], object]


def own_metric(plugin: Plugin) -> Metric:
    """The metric of an object that an experiment names. Raises ConfigError for an object that is none."""
    function = plain_function(plugin, 1, _METRIC)
    name = plugin.name.rpartition(":")[2]
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{plugin.name!r} gives its value the name {name!r}, which cannot be one; {_METRIC}")
    return Metric(name, function)


def measured(metrics: Sequence[Metric], transcript: JsonObject) -> JsonObject:
    """What a transcript keeps of its metrics: `metrics`, and `metric_errors` where there are any.

    Nothing where there are no metrics, or the conversation failed: it has no result to measure.
    """
    if not metrics or transcript["status"] != "finished":
        return {}
    values: JsonObject = {}
    errors: JsonObject = {}
    conversation = ended_conversation(transcript)
    for metric in metrics:
        try:
            with boundary(ConversationError, metric.name):
                values |= _values(metric, metric.function(conversation.copied()))
        except ShortageError:
            raise
        except MacRunnerError as fault:
            values[metric.name] = None
            errors[metric.name] = words_of(fault)
    return {"metrics": values, **({"metric_errors": errors} if errors else {})}


def _values(metric: Metric, found: object) -> JsonObject:
    if not isinstance(found, Mapping):
        return {metric.name: plain_number(metric.name, found)}
    if len(found) > VALUES_MAX:
        raise ValueError(f"it returned {len(found)} values; at most {VALUES_MAX} are kept")
    return {
        _joined(metric.name, name): plain_number(f"{metric.name}[{name!r}]", value) for name, value in found.items()
    }


def _joined(metric: str, name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"it returned a value called {name!r}; names are text without spaces and signs")
    return f"{metric}.{name}"


def plain_number(what: str, value: Any) -> bool | int | float:
    """A number as JSON holds it; one of NumPy or torch counts as what it holds."""
    if not isinstance(value, Real) and callable(item := getattr(value, "item", None)):
        value = item()
    if isinstance(value, bool):
        return value
    if isinstance(value, Real):
        number = int(value) if isinstance(value, Integral) else float(value)
        if not abs(number) <= _VALUE_MAX:  # Nor is what is not a number.
            found = "too large" if abs(number) > _VALUE_MAX else "not a number"
            raise ValueError(f"{what} is {found}; a value lies between -{_VALUE_MAX:g} and {_VALUE_MAX:g}")
        return number
    raise TypeError(f"{what} is {type(value).__name__}; a value is a number or a truth value")


def words_of(fault: MacRunnerError) -> str:
    """The error with the line of the user's code that raised it."""
    return (place_of(fault.__cause__, has_folder=False) if fault.__cause__ is not None else str(fault))[
        :_ERROR_CHARS_MAX
    ]


_REWARD: Final = "a reward is a function `reward(conversation)` that returns a number for each agent, by its name"

Reward: TypeAlias = Callable[[EndedConversation], object]


def own_reward(plugin: Plugin) -> Reward:
    """The function that an experiment names. Raises ConfigError for an object that is none."""
    return plain_function(plugin, 1, _REWARD)


def shaped(rewards: Mapping[str, Reward], transcript: JsonObject) -> JsonObject:
    """What a transcript keeps of its shaped rewards: `shaped_rewards`, and `reward_errors` where there are any.

    Nothing where there are none, or the conversation failed: it has no result to reward.
    """
    if not rewards or transcript["status"] != "finished":
        return {}
    values: JsonObject = {}
    errors: JsonObject = {}
    conversation = ended_conversation(transcript)
    for name, reward in rewards.items():
        try:
            with boundary(ConversationError, name):
                values[name] = _by_agent(conversation, reward(conversation.copied()))
        except ShortageError:
            raise
        except MacRunnerError as fault:
            errors[name] = words_of(fault)
    return {"shaped_rewards": values, **({"reward_errors": errors} if errors else {})}


def _by_agent(conversation: EndedConversation, found: object) -> JsonObject:
    agents = [agent.name for agent in conversation.agents]
    if not isinstance(found, Mapping):
        raise TypeError(f"it returned {type(found).__name__}; return a number for each agent, by its name")
    if strays := [name for name in found if name not in agents]:
        raise ValueError(
            f"it returned a value for {strays[0]!r}, which is not an agent; there are: {', '.join(agents)}"
        )
    if missing := [name for name in agents if name not in found]:
        raise ValueError(f"it returned no value for {missing[0]!r}; return a number for each agent")
    return {name: plain_number(name, found[name]) for name in agents}
