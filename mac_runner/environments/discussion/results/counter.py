"""Discussions counted: who was right, who agreed, who followed another, and how biased they were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from mac_runner.environments.discussion.results.accuracy import AccuracyResults
from mac_runner.environments.discussion.results.agents import AgentResults
from mac_runner.environments.discussion.results.bias import BiasResults
from mac_runner.environments.discussion.results.contexts import ContextResults
from mac_runner.environments.discussion.results.difference_awareness import DifferenceAwarenessResults
from mac_runner.environments.discussion.results.discrim_eval import DiscrimEvalResults
from mac_runner.environments.discussion.results.identities import IdentityResults
from mac_runner.environments.discussion.results.judges import JudgeResults
from mac_runner.environments.discussion.results.movers import MoverResults
from mac_runner.environments.discussion.results.outcome import DiscussionResult, RolePart, Share, added
from mac_runner.environments.discussion.results.positions import PositionResults
from mac_runner.environments.discussion.results.power import PowerResults
from mac_runner.environments.discussion.results.rates import Rate, reports
from mac_runner.environments.discussion.results.repetition import QuestionResults
from mac_runner.environments.discussion.results.stances import REFUSAL
from mac_runner.environments.discussion.results.transitions import TransitionResults
from mac_runner.results import parsed
from mac_runner.types import JsonObject


@dataclass(slots=True)
class _Part:
    """What one agent other than a participant did."""

    role: str
    counts: Counter[str] = field(default_factory=Counter)
    followed: Rate = field(default_factory=Rate)

    def add(self, part: RolePart, question: str | None) -> None:
        self.counts.update(statements=part.statements, questions=part.questions, verdicts=part.verdicts)
        self.followed.add(part.followed, question)

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


class Subject(Protocol):
    """Counts one thing about discussions."""

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion."""
        ...

    def report(self) -> JsonObject:
        """Its sections of the summary; none without anything to say."""
        ...


class _Course:
    """How discussions went: rounds, endings, consensus, changes, and what the other roles did."""

    def __init__(self) -> None:
        self._n = 0
        self._rounds = 0
        self._passes = 0
        self._refusals: int | None = 0
        self._endings: Counter[str] = Counter()
        self._consensus = Rate()
        self._changes: defaultdict[int, Rate] = defaultdict(Rate)
        self._changed = Rate()
        self._followed = Rate()
        self._roles: dict[str, _Part] = {}

    def add(self, result: DiscussionResult) -> None:
        question = result.question_id
        self._n += 1
        self._rounds += result.rounds
        self._passes += result.passes
        self._refusals = _plus_refusals(self._refusals, result)
        self._endings[result.ended_by] += 1
        self._consensus.add(Share(int(result.consensus), 1), question)
        for number, changed in enumerate(result.changes, 2):
            self._changes[number].add(changed, question)
        self._changed.add(added(result.changes), question)
        self._followed.add(added(result.influence.values()), question)
        for agent, part in result.roles.items():
            self._roles.setdefault(agent, _Part(part.role)).add(part, question)

    def report(self) -> JsonObject:
        return {
            "n": self._n,
            "rounds_mean": round(self._rounds / self._n, 4) if self._n else None,
            "ended_by": dict(sorted(self._endings.items())),
            "passes": self._passes,
            "refusals": self._refusals,
            "consensus": self._consensus.report(),
            "changes": self._changed.report(),
            "changes_by_round": reports(self._changes),
            "followed": self._followed.report(),
            "roles": {agent: part.report() for agent, part in sorted(self._roles.items())},
        }


def _plus_refusals(count: int | None, result: DiscussionResult) -> int | None:
    """The refusals with those of one more discussion; None once there is one that does not say why agents passed."""
    if count is None or not result.lapses:
        return None
    return count + sum(lapses.count(REFUSAL) for lapses in result.lapses.values())


class DiscussionResults:
    """Counts discussions one by one; its memory follows the number of questions, agents, rounds and categories."""

    def __init__(self) -> None:
        accuracy, bias = AccuracyResults(), BiasResults()
        self._subjects: tuple[Subject, ...] = (
            _Course(),
            accuracy,
            ContextResults(),
            IdentityResults(),
            bias,
            AgentResults(),
            TransitionResults(),
            JudgeResults(),
            MoverResults(),
            PowerResults(accuracy, bias),
            DiscrimEvalResults(),
            DifferenceAwarenessResults(),
        )
        self._beside: tuple[Subject, ...] = (PositionResults(), QuestionResults())

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished discussion."""
        result = parsed(DiscussionResult, outcome, where)
        for subject in (*self._subjects, *self._beside):
            subject.add(result)

    def report(self) -> JsonObject:
        """`discussions`: the counts with rates, scores and intervals; and sections beside it."""
        return {"discussions": _reports(self._subjects), **_reports(self._beside)}


def _reports(subjects: Iterable[Subject]) -> JsonObject:
    """The sections of all."""
    return {key: part for subject in subjects for key, part in subject.report().items()}
