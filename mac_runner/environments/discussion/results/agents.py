"""Accuracy, bias, changes and tokens, by agent and by model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.environments.discussion.results.accuracy import Right
from mac_runner.environments.discussion.results.bias import Bias
from mac_runner.environments.discussion.results.identities import changes_of
from mac_runner.environments.discussion.results.outcome import DiscussionResult, added
from mac_runner.environments.discussion.results.rates import Rate
from mac_runner.environments.discussion.results.stances import Answer, answers_by_agent
from mac_runner.results import Table, count_text, interval_text, percent_text, section, signed_text
from mac_runner.types import JsonObject

_SECTIONS: Final = {"by_agent": "agent", "by_model": "model"}


@dataclass(slots=True)
class _Own:
    """What one agent, or the agents of one model, did."""

    first: Right = field(default_factory=Right)
    final: Right = field(default_factory=Right)
    bias: Bias = field(default_factory=Bias)
    changes: Rate = field(default_factory=Rate)
    turns: int = 0
    prompt: int = 0
    completion: int = 0
    has_bias: bool = False

    def report(self) -> JsonObject:
        found: JsonObject = {}
        if self.final.asked.n:
            found["accuracy"] = {"first": self.first.report(), "final": self.final.report()}
        if self.has_bias:
            found["bias"] = self.bias.report()
        if self.changes.n:
            found["changes"] = self.changes.report()
        found["tokens"] = {"turns": self.turns, "prompt": self.prompt, "completion": self.completion}
        return found


class AgentResults:
    """Counts discussions one by one."""

    def __init__(self) -> None:
        self._by: dict[str, defaultdict[str, _Own]] = {name: defaultdict(_Own) for name in _SECTIONS}

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion."""
        final = answers_by_agent(result, -1)
        groups: dict[str, dict[str, list[str]]] = {name: {} for name in _SECTIONS}
        for agent, part in result.agents.items():
            groups["by_agent"][agent] = [agent]
            groups["by_model"].setdefault(part.model, []).append(agent)
        for name, members in groups.items():
            for key, agents in members.items():
                _add(self._by[name][key], agents, result, final)

    def report(self) -> JsonObject:
        """`by_agent` and `by_model`; empty where discussions do not say who is who."""
        return {
            name: {key: own.report() for key, own in sorted(owns.items())} for name, owns in self._by.items() if owns
        }


def _add(own: _Own, agents: list[str], result: DiscussionResult, final: Mapping[str, Answer]) -> None:
    """The part that some agents have in one discussion, as one cluster; `final` are the last answers of all."""
    given = [result.answers[agent] for agent in agents if result.answers.get(agent)]
    if result.correct_answer_id is not None and given:
        own.first.add([answers[0] for answers in given], result)
        own.final.add([answers[-1] for answers in given], result)
    if result.bias is not None and given:
        own.has_bias = True
        own.bias.add([final[agent] for agent in agents if agent in final], result.bias, result.question_id)
    own.changes.add(added(map(changes_of, given)), result.question_id)
    for agent in agents:
        turns, prompt, completion = result.tokens.get(agent, (0, 0, 0))
        own.turns += turns
        own.prompt += prompt
        own.completion += completion


def agent_tables(report: JsonObject) -> Iterator[Table]:
    """By agent and by model, where there are several: answers, and what they cost."""
    for name, head in _SECTIONS.items():
        owns = {key: own for key, own in section(report, name).items() if isinstance(own, dict)}
        if len(owns) < 2:
            continue
        rows = [_answers(key, own) for key, own in owns.items() if "accuracy" in own or "changes" in own]
        heads = ("n", "right, first", "final", "95% interval", "bias ambig", "bias disambig", "changed")
        if rows:
            yield Table(f"answers by {head}", (head,), heads, rows)
        costs = [
            (key, *(count_text(section(own, "tokens").get(part)) for part in ("turns", "prompt", "completion")))
            for key, own in owns.items()
        ]
        yield Table(f"tokens by {head}", (head,), ("turns", "prompt tokens", "completion tokens"), costs)


def _answers(key: str, own: JsonObject) -> tuple[str, ...]:
    accuracy, bias = section(own, "accuracy"), section(own, "bias")
    first, final = section(accuracy, "first"), section(accuracy, "final")
    return (
        key,
        count_text(final.get("n")),
        percent_text(first.get("rate")),
        percent_text(final.get("rate")),
        interval_text(final.get("interval")),
        signed_text(section(bias, "ambiguous").get("score")),
        signed_text(section(bias, "disambiguated").get("score")),
        percent_text(section(own, "changes").get("rate")),
    )
