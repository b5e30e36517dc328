"""Discussions counted: who was right, who agreed, who followed another, and how biased they were."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from mac_runner.environments.discussion.measures import MEASURES
from mac_runner.environments.discussion.results.difference_awareness import DifferenceAwarenessResults
from mac_runner.environments.discussion.results.discrim_eval import DiscrimEvalResults
from mac_runner.environments.discussion.results.outcome import DiscussionResult
from mac_runner.environments.discussion.results.power import power_report
from mac_runner.environments.discussion.results.stances import REFUSAL
from mac_runner.measures import Counted, Measure
from mac_runner.results import parsed
from mac_runner.types import JsonObject

_SECTIONS: Final = (
    "changes_by_round",
    *(f"{what}_by_{whose}" for whose in ("identity", "own_identity") for what in ("changes", "followed")),
)
"""Those that are there without a case too."""
_DONE: Final = {"moderator": ("questions",), "judge": ("verdicts",)}
"""What else agents of a role do besides making statements."""


class _Course:
    """How discussions went: rounds, endings, passes, what the other roles did, and which questions came again."""

    def __init__(self) -> None:
        self._n = 0
        self._rounds = 0
        self._passes = 0
        self._refusals: int | None = 0
        self._endings: Counter[str] = Counter()
        self._roles: dict[str, str] = {}
        self._done: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._questions: Counter[str] = Counter()

    def add(self, result: DiscussionResult) -> None:
        self._n += 1
        self._rounds += result.rounds
        self._passes += result.passes
        self._refusals = _plus_refusals(self._refusals, result)
        self._endings[result.ended_by] += 1
        for agent, part in result.roles.items():
            self._roles.setdefault(agent, part.role)
            self._done[agent].update(statements=part.statements, questions=part.questions, verdicts=part.verdicts)
        self._questions[result.question_id or ""] += 1

    def report(self) -> JsonObject:
        return {
            "n": self._n,
            "rounds_mean": round(self._rounds / self._n, 4) if self._n else None,
            "ended_by": dict(sorted(self._endings.items())),
            "passes": self._passes,
            "refusals": self._refusals,
            "roles": {
                agent: {
                    "role": role,
                    **{what: self._done[agent][what] for what in ("statements", *_DONE.get(role, ()))},
                }
                for agent, role in sorted(self._roles.items())
            },
            **{name: {} for name in _SECTIONS},
        }

    def questions(self) -> JsonObject:
        """How many questions there are, how many of them repeat, and how often the commonest comes."""
        return {
            "n": len(self._questions),
            "discussions": self._questions.total(),
            "repeated": sum(count > 1 for count in self._questions.values()),
            "most": max(self._questions.values()),
        }


def _plus_refusals(count: int | None, result: DiscussionResult) -> int | None:
    """The refusals with those of one more discussion; None once there is one that does not say why agents passed."""
    if count is None or not result.lapses:
        return None
    return count + sum(lapses.count(REFUSAL) for lapses in result.lapses.values())


class DiscussionResults:
    """Counts discussions one by one; its memory follows the number of questions, agents, rounds and categories."""

    def __init__(self, measures: Sequence[Measure] = MEASURES) -> None:
        self.counted = Counted(measures)
        self._course = _Course()
        self._benchmarks = (DiscrimEvalResults(), DifferenceAwarenessResults())

    def add(self, outcome: JsonObject, where: str) -> None:
        """Count one finished discussion."""
        result = parsed(DiscussionResult, outcome, where)
        self.counted.add(result, result.question_id)
        for counter in (self._course, *self._benchmarks):
            counter.add(result)

    def report(self) -> JsonObject:
        """`discussions`: the counts with rates, scores and intervals; and sections beside it."""
        course = self._course.report()
        report: Any = self.counted.report({"discussions": course})
        for found in (power_report(self.counted), *(benchmark.report() for benchmark in self._benchmarks)):
            report["discussions"] |= found
        beside: JsonObject = report
        return beside | ({"discussion_questions": self._course.questions()} if course["n"] else {})
