"""What became of answers: from the first round to the last, and from each round to the next.

Each answer of a participant is counted by what kind it was before and after: with the stereotype, against it, unknown,
a refusal or a pass; and right, wrong, a refusal or a pass. A stance means different things where the context settles
the answer and where it does not, so the two are printed apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

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

STEPS: Final = {"first_to_final": "from the first round to the last", "round_to_round": "from each round to the next"}
_AFTER: Final = (*STANCES, REFUSAL, PASSED)
AFTER: Final = {
    "stance": _AFTER,
    "stance_ambiguous": _AFTER,
    "stance_disambiguated": _AFTER,
    "correctness": ("right", "wrong", REFUSAL, PASSED),
}
"""What an answer may become, by how answers are told apart."""
_BY_CONTEXT: Final = {"ambig": "stance_ambiguous", "disambig": "stance_disambiguated"}
_TITLES: Final = {
    "stance_ambiguous": "how stances changed in ambiguous contexts",
    "stance_disambiguated": "how stances changed in disambiguated contexts",
    "correctness": "how right answers changed",
}
_Changes: TypeAlias = Counter[tuple[str, str]]


class Transitions:
    """Pairs of kinds, before and after."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds
        self._counts: _Changes = Counter()

    def add(self, counts: _Changes, _question: str | None) -> None:
        """Add the pairs of one discussion."""
        for pair, count in counts.items():
            self._counts[pair] += count

    def report(self) -> JsonObject:
        """A row for each kind before with the counts after."""
        return {before: {after: self._counts[before, after] for after in self._kinds} for before in self._kinds}


def transitions_of(result: DiscussionResult) -> Iterator[tuple[tuple[str, str], _Changes]]:
    """The pairs of a discussion of two rounds or more; answers to a question without a known target have no stance."""
    rounds = [answers_by_agent(result, number) for number in range(result.rounds)]
    found: defaultdict[tuple[str, str], _Changes] = defaultdict(Counter)
    for number in range(1, len(rounds)):
        _count("round_to_round", rounds[number - 1], rounds[number], result, found)
    if len(rounds) > 1:
        _count("first_to_final", rounds[0], rounds[-1], result, found)
    yield from found.items()


def _count(
    step: str,
    before: dict[str, Answer],
    after: dict[str, Answer],
    result: DiscussionResult,
    found: defaultdict[tuple[str, str], _Changes],
) -> None:
    for agent, later in after.items():
        earlier = before[agent]
        if result.bias is not None:
            stances = stance_of(earlier, result.bias), stance_of(later, result.bias)
            if UNSCORED not in stances and result.bias.biased is not None:
                for kind in ("stance", _BY_CONTEXT[result.bias.context]):
                    found[kind, step][stances] += 1
        if (correct := result.correct_answer_id) is not None:
            found["correctness", step][_correctness(earlier, correct), _correctness(later, correct)] += 1


def _correctness(answer: Answer, correct: str) -> str:
    if answer.choice is None:
        return REFUSAL if answer.lapse == REFUSAL else PASSED
    return "right" if answer.choice == correct else "wrong"


def transition_tables(summary: JsonObject) -> Iterator[Table]:
    """A table of kinds before and after, from the first round to the last."""
    found = section(section(summary, "discussions"), "transitions")
    for kind, title in _TITLES.items():
        kinds = AFTER[kind]
        counted = section(section(found, kind), "first_to_final")
        if counted:
            rows = [
                (before, *(count_text(section(counted, before).get(after)) for after in kinds))
                for before in kinds
                if any(section(counted, before).values())
            ]
            yield Table(f"{title}, {STEPS['first_to_final']}", ("first",), tuple(f"then {one}" for one in kinds), rows)
