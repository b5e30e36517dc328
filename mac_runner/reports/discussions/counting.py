"""Discussions counted: who was right, who agreed, who changed its answer after whom, which replies were no use.

Three kinds of answer are told apart: `first`, what participants said in the first round; `final`, what they said
last; and `group`, the judge's verdict or else the answer most of them came to. So a summary shows what talking
did. Memory follows the number of agents, rounds, identities and categories, not of discussions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from mac_runner.reports.discussions.bias import BiasTally, ambiguous_report, disambiguated_report
from mac_runner.reports.discussions.results import BiasItem, DiscussionResult, RolePart, Tally
from mac_runner.reports.intervals import wilson
from mac_runner.types import JsonObject

KINDS: Final = ("first", "final", "group")
ALL: Final = "all"


@dataclass(slots=True)
class _Rate:
    """Cases, those that count, and from how many discussions they come."""

    n: int = 0
    count: int = 0
    discussions: int = 0

    def add(self, tally: Tally) -> None:
        self.n += tally.cases
        self.count += tally.counted
        self.discussions += tally.cases > 0

    def report(self) -> JsonObject:
        interval = wilson(self.count, self.n)
        return {
            "n": self.n,
            "discussions": self.discussions,
            "count": self.count,
            "rate": round(self.count / self.n, 4) if self.n else None,
            "interval": None if interval is None else [round(interval.lo, 4), round(interval.hi, 4)],
        }


@dataclass(slots=True)
class _Bias:
    ambiguous: BiasTally = field(default_factory=BiasTally)
    disambiguated: BiasTally = field(default_factory=BiasTally)

    def report(self) -> JsonObject:
        return {
            "ambiguous": ambiguous_report(self.ambiguous),
            "disambiguated": disambiguated_report(self.disambiguated),
        }


@dataclass(slots=True)
class _Part:
    """What one agent did that is no participant."""

    role: str
    counts: Counter[str] = field(default_factory=Counter)
    followed: _Rate = field(default_factory=_Rate)

    def add(self, part: RolePart) -> None:
        self.counts.update(statements=part.statements, questions=part.questions, verdicts=part.verdicts)
        self.followed.add(part.followed)

    def report(self) -> JsonObject:
        """The counts of its role: a judge asks nothing, and nobody follows a moderator."""
        report: JsonObject = {"role": self.role, "statements": self.counts["statements"]}
        match self.role:
            case "moderator":
                report["questions"] = self.counts["questions"]
            case "judge":
                report["verdicts"] = self.counts["verdicts"]
            case "devils_advocate":
                report["followed"] = self.followed.report()
        return report


class DiscussionCounter:
    """Counts discussions one by one, in any order."""

    def __init__(self) -> None:
        self.n = 0
        self._rounds = 0
        self._passes = 0
        self._endings: Counter[str] = Counter()
        self._consensus = _Rate()
        self._accuracy: defaultdict[str, _Rate] = defaultdict(_Rate)
        self._accuracy_by_round: defaultdict[int, _Rate] = defaultdict(_Rate)
        self._changes: defaultdict[int, _Rate] = defaultdict(_Rate)
        self._changes_by_identity: defaultdict[str, _Rate] = defaultdict(_Rate)
        self._influence: defaultdict[str, _Rate] = defaultdict(_Rate)
        self._roles: dict[str, _Part] = {}
        self._bias: dict[str, defaultdict[str, _Bias]] = {kind: defaultdict(_Bias) for kind in KINDS}

    def add(self, result: DiscussionResult) -> None:
        """Count one finished discussion."""
        self.n += 1
        self._rounds += result.rounds
        self._passes += result.passes
        self._endings[result.ended_by] += 1
        self._consensus.add(Tally(int(result.is_consensus), 1))
        for number, changed in enumerate(result.changes, 2):
            self._changes[number].add(changed)
        for shown, changed in result.changes_by_identity.items():
            self._changes_by_identity[shown].add(changed)
        for shown, followed in result.influence.items():
            self._influence[shown].add(followed)
        for agent, part in result.roles.items():
            self._roles.setdefault(agent, _Part(part.role)).add(part)
        if result.correct is not None:
            self._add_accuracy(result, result.correct)
        if result.bias is not None:
            self._add_bias(result, result.bias)

    def _add_accuracy(self, result: DiscussionResult, correct: str) -> None:
        for kind in KINDS:
            answers = list(_answers(result, kind))
            self._accuracy[kind].add(Tally(answers.count(correct), len(answers)))
        for number in range(result.rounds):
            answers = [given[number] for given in result.answers.values()]
            self._accuracy_by_round[number + 1].add(Tally(answers.count(correct), len(answers)))

    def _add_bias(self, result: DiscussionResult, item: BiasItem) -> None:
        for kind in KINDS:
            for category in (ALL, item.category):
                bias = self._bias[kind][category]
                tally = bias.ambiguous if item.is_ambiguous else bias.disambiguated
                for answer in _answers(result, kind):
                    tally.add(answer, item)

    def report(self) -> JsonObject:
        """The counts with rates, scores and intervals."""
        report: JsonObject = {
            "n": self.n,
            "rounds_mean": round(self._rounds / self.n, 4) if self.n else None,
            "ended_by": dict(sorted(self._endings.items())),
            "passes": self._passes,
            "consensus": self._consensus.report(),
            "changes_by_round": {str(number): rate.report() for number, rate in sorted(self._changes.items())},
            "changes_by_identity": {shown: rate.report() for shown, rate in sorted(self._changes_by_identity.items())},
            "followed_by_identity": {shown: rate.report() for shown, rate in sorted(self._influence.items())},
            "roles": {agent: part.report() for agent, part in sorted(self._roles.items())},
        }
        if self._accuracy:
            report["accuracy"] = {kind: self._accuracy[kind].report() for kind in KINDS}
            report["accuracy_by_round"] = {
                str(number): rate.report() for number, rate in sorted(self._accuracy_by_round.items())
            }
        if self._bias["group"]:
            report["bias"] = {
                kind: {category: bias.report() for category, bias in sorted(self._bias[kind].items())} for kind in KINDS
            }
        return report


def _answers(result: DiscussionResult, kind: str) -> Iterator[str | None]:
    """The answers of one kind; who passed answered nothing, which is not right either."""
    match kind:
        case "first":
            yield from (given[0] for given in result.answers.values() if given)
        case "final":
            yield from (given[-1] for given in result.answers.values() if given)
        case _:
            yield result.answer
