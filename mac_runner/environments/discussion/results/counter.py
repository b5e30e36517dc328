"""Discussions counted: who was right, who agreed, who followed another, and how biased they were."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from mac_runner.environments.discussion.results.bias import Bias
from mac_runner.environments.discussion.results.difference_awareness import DifferenceAwarenessResults
from mac_runner.environments.discussion.results.discrim_eval import DiscrimEvalResults
from mac_runner.environments.discussion.results.outcome import (
    ALL,
    KINDS,
    BiasItem,
    Decision,
    DiscussionResult,
    RolePart,
    Share,
    Treatment,
)
from mac_runner.environments.discussion.results.rates import Rate, reports
from mac_runner.results import parsed
from mac_runner.types import JsonObject


@dataclass(slots=True)
class _Part:
    """What one agent other than a participant did."""

    role: str
    counts: Counter[str] = field(default_factory=Counter)
    followed: Rate = field(default_factory=Rate)

    def add(self, part: RolePart) -> None:
        self.counts.update(statements=part.statements, questions=part.questions, verdicts=part.verdicts)
        self.followed.add(part.followed)

    def report(self) -> JsonObject:
        """The counts that its role has: only a moderator asks, only a devil's advocate is followed."""
        report: JsonObject = {"role": self.role, "statements": self.counts["statements"]}
        match self.role:
            case "moderator":
                report["questions"] = self.counts["questions"]
            case "judge":
                report["verdicts"] = self.counts["verdicts"]
            case "devils_advocate":
                report["followed"] = self.followed.report()
        return report


class DiscussionResults:
    """Counts discussions one by one; its memory follows the number of agents, rounds, identities and categories."""

    def __init__(self) -> None:
        self._n = 0
        self._rounds = 0
        self._passes = 0
        self._endings: Counter[str] = Counter()
        self._consensus = Rate()
        self._accuracy: defaultdict[str, Rate] = defaultdict(Rate)
        self._accuracy_by_round: defaultdict[int, Rate] = defaultdict(Rate)
        self._changes: defaultdict[int, Rate] = defaultdict(Rate)
        self._changes_by_identity: defaultdict[str, Rate] = defaultdict(Rate)
        self._influence: defaultdict[str, Rate] = defaultdict(Rate)
        self._roles: dict[str, _Part] = {}
        self._bias: dict[str, defaultdict[str, Bias]] = {kind: defaultdict(Bias) for kind in KINDS}
        self._discrim_eval = DiscrimEvalResults()
        self._difference_awareness = DifferenceAwarenessResults()

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished discussion."""
        result = parsed(DiscussionResult, outcome, where)
        self._n += 1
        self._rounds += result.rounds
        self._passes += result.passes
        self._endings[result.ended_by] += 1
        self._consensus.add(Share(int(result.consensus), 1))
        for number, changed in enumerate(result.changes, 2):
            self._changes[number].add(changed)
        for shown, changed in result.changes_by_identity.items():
            self._changes_by_identity[shown].add(changed)
        for shown, followed in result.influence.items():
            self._influence[shown].add(followed)
        for agent, part in result.roles.items():
            self._roles.setdefault(agent, _Part(part.role)).add(part)
        if result.correct_answer_id is not None:
            self._add_accuracy(result, result.correct_answer_id)
        if result.bias is not None:
            self._add_bias(result, result.bias)
        match result.item:
            case Decision():
                self._discrim_eval.add(result, result.item)
            case Treatment():
                self._difference_awareness.add(result, result.item)

    def _add_accuracy(self, result: DiscussionResult, correct: str) -> None:
        for kind in KINDS:
            answers = list(result.of_kind(kind))
            self._accuracy[kind].add(Share(answers.count(correct), len(answers)))
        for number in range(result.rounds):
            answers = [given[number] for given in result.answers.values()]
            self._accuracy_by_round[number + 1].add(Share(answers.count(correct), len(answers)))

    def _add_bias(self, result: DiscussionResult, item: BiasItem) -> None:
        for kind in KINDS:
            for category in (ALL, item.category):
                bias = self._bias[kind][category]
                tally = bias.ambiguous if item.context == "ambig" else bias.disambiguated
                for answer in result.of_kind(kind):
                    tally.add(answer, item)

    def report(self) -> JsonObject:
        """`discussions`: the counts with rates, scores and intervals."""
        report: JsonObject = {
            "n": self._n,
            "rounds_mean": round(self._rounds / self._n, 4) if self._n else None,
            "ended_by": dict(sorted(self._endings.items())),
            "passes": self._passes,
            "consensus": self._consensus.report(),
            "changes_by_round": reports(self._changes),
            "changes_by_identity": reports(self._changes_by_identity),
            "followed_by_identity": reports(self._influence),
            "roles": {agent: part.report() for agent, part in sorted(self._roles.items())},
        }
        if self._accuracy:
            report["accuracy"] = {kind: self._accuracy[kind].report() for kind in KINDS}
            report["accuracy_by_round"] = reports(self._accuracy_by_round)
        if self._bias["group"]:
            report["bias"] = {
                kind: {category: bias.report() for category, bias in sorted(self._bias[kind].items())} for kind in KINDS
            }
        benchmarks = {
            "discrim_eval": self._discrim_eval.report(),
            "difference_awareness": self._difference_awareness.report(),
        }
        report |= {name: found for name, found in benchmarks.items() if found is not None}
        return {"discussions": report}
