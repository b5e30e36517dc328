"""An ended conversation as its readers see it: metrics, and analysis in Python.

It is made from a transcript and shares nothing with it: what a reader changes in it changes nothing that is stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from mac_runner.environments.reading import thoughts
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
