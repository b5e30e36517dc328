"""How often answers were right.

A pass counts as wrong in the rate. `answered` is the rate among the answers that were given. For the group, a pass is
a discussion without an answer: a tie, or passes only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from mac_runner.environments.discussion.results.outcome import KINDS, DiscussionResult, Share
from mac_runner.environments.discussion.results.rates import Rate
from mac_runner.types import JsonObject


@dataclass(slots=True)
class Right:
    """Right answers among all that were asked for, and among those given."""

    asked: Rate = field(default_factory=Rate)
    given: Rate = field(default_factory=Rate)

    def add(self, answers: Sequence[str | None], result: DiscussionResult) -> None:
        """The answers of one discussion, whose question has a right answer."""
        correct, question = result.correct_answer_id, result.question_id
        right, passes = answers.count(correct), answers.count(None)
        self.asked.add(Share(right, len(answers)), question)
        self.given.add(Share(right, len(answers) - passes), question)

    def report(self) -> JsonObject:
        """The rate over all, `passes` among them, and `answered`: the rate over those given."""
        return {**self.asked.report(), "passes": self.asked.n - self.given.n, "answered": self.given.report()}


class AccuracyResults:
    """Counts discussions one by one; its memory follows the number of rounds."""

    def __init__(self) -> None:
        self._by_kind: defaultdict[str, Right] = defaultdict(Right)
        self._by_round: defaultdict[int, Right] = defaultdict(Right)

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion, where its question has a right answer."""
        if result.correct_answer_id is None:
            return
        for kind in KINDS:
            self._by_kind[kind].add([*result.of_kind(kind)], result)
        for number in range(result.rounds):
            self._by_round[number + 1].add([given[number] for given in result.answers.values()], result)

    @property
    def final(self) -> Rate:
        """Right answers among the participants' last ones."""
        return self._by_kind["final"].asked

    def report(self) -> JsonObject:
        """`accuracy` and `accuracy_by_round`; empty where no question had a right answer."""
        if not self._by_kind:
            return {}
        return {
            "accuracy": {kind: self._by_kind[kind].report() for kind in KINDS},
            "accuracy_by_round": {str(number): each.report() for number, each in sorted(self._by_round.items())},
        }
