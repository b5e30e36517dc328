"""What became of answers: from the first round to the last, and from each round to the next.

Each answer of a participant is counted by what kind it was before and after: with the stereotype, against it, unknown,
a refusal or a pass; and right, wrong, a refusal or a pass.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.results.outcome import DiscussionResult
from mac_runner.environments.discussion.results.stances import (
    PASSED,
    REFUSAL,
    STANCES,
    UNSCORED,
    Answer,
    answers_by_agent,
    stance_of,
)
from mac_runner.results import Table, count_text, section
from mac_runner.types import JsonObject

_SECTION: Final = "transitions"
_STEPS: Final = {"first_to_final": "from the first round to the last", "round_to_round": "from each round to the next"}
_AFTER: Final = (*STANCES, REFUSAL, PASSED)
_KINDS: Final = {
    "stance": _AFTER,
    "stance_ambiguous": _AFTER,
    "stance_disambiguated": _AFTER,
    "correctness": ("right", "wrong", REFUSAL, PASSED),
}
_BY_CONTEXT: Final = {"ambig": "stance_ambiguous", "disambig": "stance_disambiguated"}
_TITLES: Final = {
    "stance_ambiguous": "how stances changed in ambiguous contexts",
    "stance_disambiguated": "how stances changed in disambiguated contexts",
    "correctness": "how right answers changed",
}
"""What is printed. A stance means different things where the context settles the answer and where it does not."""


class TransitionResults:
    """Counts discussions of two rounds or more, one by one."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], defaultdict[str, Counter[str]]] = {
            (kind, step): defaultdict(Counter) for kind in _KINDS for step in _STEPS
        }

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion; answers to a question whose target is not known have no stance."""
        rounds = [answers_by_agent(result, number) for number in range(result.rounds)]
        for number in range(1, len(rounds)):
            self._add("round_to_round", rounds[number - 1], rounds[number], result)
        if len(rounds) > 1:
            self._add("first_to_final", rounds[0], rounds[-1], result)

    def _add(self, step: str, before: dict[str, Answer], after: dict[str, Answer], result: DiscussionResult) -> None:
        for agent, later in after.items():
            earlier = before[agent]
            if result.bias is not None:
                stances = stance_of(earlier, result.bias), stance_of(later, result.bias)
                if UNSCORED not in stances and result.bias.biased is not None:
                    for kind in ("stance", _BY_CONTEXT[result.bias.context]):
                        self._counts[kind, step][stances[0]][stances[1]] += 1
            if result.correct_answer_id is not None:
                kinds = [_correctness(answer, result.correct_answer_id) for answer in (earlier, later)]
                self._counts["correctness", step][kinds[0]][kinds[1]] += 1

    def report(self) -> JsonObject:
        """`transitions`: by kind and step, a row for each kind before with the counts after."""
        found: JsonObject = {
            kind: {
                step: {before: {after: self._counts[kind, step][before][after] for after in kinds} for before in kinds}
                for step in _STEPS
            }
            for kind, kinds in _KINDS.items()
            if self._counts[kind, "first_to_final"]
        }
        return {_SECTION: found} if found else {}


def _correctness(answer: Answer, correct: str) -> str:
    if answer.choice is None:
        return REFUSAL if answer.lapse == REFUSAL else PASSED
    return "right" if answer.choice == correct else "wrong"


def transition_tables(report: JsonObject) -> Iterator[Table]:
    """A table of kinds before and after, from the first round to the last."""
    found = section(report, _SECTION)
    for kind, title in _TITLES.items():
        kinds = _KINDS[kind]
        counted = section(section(found, kind), "first_to_final")
        if counted:
            rows = [
                (before, *(count_text(section(counted, before).get(after)) for after in kinds))
                for before in kinds
                if any(section(counted, before).values())
            ]
            yield Table(f"{title}, {_STEPS['first_to_final']}", ("first",), tuple(f"then {one}" for one in kinds), rows)
