"""What measures of discussions have in common: how they are declared, and what they keep that is more than a rate.

There are three kinds of answers: first ones, last ones, and that of the group (`outcome.py`). A pass counts as wrong.
For the group, a pass is a discussion without an answer: a tie, or passes only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from mac_runner.environments.discussion.outcome import Answer, Decision, DiscussionResult, Treatment
from mac_runner.intervals import ClusteredRate, detectable_difference
from mac_runner.measures import By, InGrid, Keys, Measure, Rate, Statistic
from mac_runner.results import count_text, integer, section
from mac_runner.types import JsonObject

_BY_QUESTION: Final = (
    "A rate over answers has Wilson's 95 % interval of as many answers as these are worth, because answers to one "
    "question go together: a question is a cluster, or a discussion where all are of one question (Korn and Graubard "
    "1998)"
)
KIND: Final = By(
    "answers",
    {"first": "first answers", "final": "last answers", "group": "answer of the group"},
    {"first": "first", "final": "last", "group": "group"},
)
KINDS: Final = tuple(KIND.words)
REFUSAL: Final = "refusal"
PASSES: Final = "passes count as wrong"


def discussion_rate(_keys: Keys = ()) -> Rate:
    """A rate over cases of discussions."""
    return Rate(noun="discussions")


class Answers(msgspec.Struct, frozen=True):
    """The right answers among those given, and those asked for."""

    right: int
    given: int
    asked: int

    def __add__(self, other: Answers) -> Answers:
        """The answers of both."""
        return Answers(self.right + other.right, self.given + other.given, self.asked + other.asked)


@dataclass(slots=True)
class _Right:
    """Right answers among all that were asked for, and among those given."""

    asked: Rate = field(default_factory=discussion_rate)
    given: Rate = field(default_factory=discussion_rate)

    def add(self, counts: Answers, question: str | None) -> None:
        self.asked.include(counts.right, counts.asked, question)
        self.given.include(counts.right, counts.given, question)

    def report(self) -> JsonObject:
        return {**self.asked.report(), "passes": self.asked.n - self.given.n, "answered": self.given.report()}

    def detectable(self) -> float | None:
        """The difference that would show between two runs of this size."""
        return detectable_share(self.asked.clustered())


@dataclass(slots=True)
class _Total:
    """A sum; None once a count is not known."""

    sum: int | None = 0

    def add(self, count: int | None, _question: str | None) -> None:
        self.sum = None if self.sum is None or count is None else self.sum + count

    def report(self) -> int | None:
        return self.sum


def detectable_share(counted: ClusteredRate) -> float | None:
    """The difference of a rate; near 0 and 1 the rate is taken two cases off the edge (Agresti and Coull)."""
    worth = counted.cases_worth
    if not worth:
        return None
    share = (counted.wins / counted.n * worth + 2) / (worth + 4)
    return detectable_difference(share * (1 - share), worth)


def _not_in_grids(_keys: tuple[str, ...]) -> None:
    """A measure whose keys differ from run to run, or of which there are too many."""


Told: TypeAlias = Callable[[DiscussionResult, Answer], Iterable[Keys]]
"""The keys under which an answer counts."""


def told_apart(result: DiscussionResult, by: Told) -> dict[Keys, list[Answer]]:
    """The answers of a discussion by key."""
    found: defaultdict[Keys, list[Answer]] = defaultdict(list)
    for answer in result.given:
        for keys in by(result, answer):
            found[keys].append(answer)
    return found


def right_by(by: Told) -> Callable[[DiscussionResult], Iterator[tuple[Keys, Answers]]]:
    """The cases of a measure of right answers; none where no answer is right."""

    def cases(result: DiscussionResult) -> Iterator[tuple[Keys, Answers]]:
        if (correct := result.correct_answer_id) is not None:
            for keys, answers in told_apart(result, by).items():
                chosen = [answer.choice for answer in answers]
                yield keys, Answers(chosen.count(correct), len(chosen) - chosen.count(None), len(chosen))

    return cases


def by_round(_result: DiscussionResult, answer: Answer) -> Iterator[Keys]:
    """Those of participants."""
    if answer.round:
        yield (answer.round,)


discussion_measure: Final = partial(
    Measure,
    statistic=discussion_rate,
    cluster="question",
    method=_BY_QUESTION,
    grid=_not_in_grids,
    figures=(),
    tables=(),
)
"""A measure that is in the summary alone, until it says more."""
right_measure: Final = partial(
    discussion_measure,
    statistic=lambda _keys: _Right(),
    value="right answers",
    unit="answers",
    by={"answers": KIND},
    caption="Share of right answers with 95 % interval; a pass counts as wrong.",
    chapter="accuracy",
)
total_measure: Final = partial(discussion_measure, statistic=lambda _keys: _Total())
seen_again: Final = partial(discussion_measure, cases=lambda _result: ())
"""What others have counted, shown in another way: of rows at another place of the summary."""


def compared_shares(figures: Mapping[tuple[str, ...], InGrid]) -> dict[str, Any]:
    """What a measure says of shares that are in the table of a grid, and are compared with those of its baseline."""
    return {"grid": figures.get, "compared": dict.fromkeys(figures, "share")}


def benchmark_measures(
    key: str,
    name: str,
    item: type[Decision | Treatment],
    part: str,
    cases: Callable[[DiscussionResult], Iterable[tuple[Keys, Any]]],
    statistic: Callable[[Keys], Statistic],
    *shown: Measure,
) -> tuple[Measure, ...]:
    """What is counted of the questions of a benchmark, by kind of answer and `part`, and how it is `shown`.

    Discussions whose question lacks a key of its metadata have no cases. They are left out, and counted.
    """
    place = f"discussions.{key}"

    def left_out(result: DiscussionResult) -> Iterator[tuple[Keys, int]]:
        if isinstance(result.item, item):
            yield (), int(next(iter(cases(result)), None) is None)

    def note(summary: JsonObject) -> Iterator[str]:
        if count := integer(section(summary, "discussions", key).get("left_out")):
            yield f"left out of {name}: {count_text(count)} discussions whose metadata lacks a key"

    return (
        total_measure(place=f"{place}.left_out", cases=left_out),
        discussion_measure(
            place=f"{place}.{{answers}}.{{{part}}}", cases=cases, by={"answers": KIND}, statistic=statistic
        ),
        *shown,
        seen_again(place=place, tables=(note,)),
    )
