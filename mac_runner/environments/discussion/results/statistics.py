"""What measures of discussions keep that is more than a rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mac_runner.measures import RATES, Cells, Keys, Rate, Share
from mac_runner.results import count_text, percent_text, section
from mac_runner.types import JsonObject


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


def right_of(answers: Sequence[str | None], correct: str) -> Answers:
    """Count answers; None is a pass."""
    return Answers(answers.count(correct), len(answers) - answers.count(None), len(answers))


@dataclass(slots=True)
class Right:
    """Right answers among all that were asked for, and among those given."""

    asked: Rate = field(default_factory=discussion_rate)
    given: Rate = field(default_factory=discussion_rate)

    def add(self, counts: Answers, question: str | None) -> None:
        """Add the answers of one discussion."""
        self.asked.include(counts.right, counts.asked, question)
        self.given.include(counts.right, counts.given, question)

    def report(self) -> JsonObject:
        """The rate over all, `passes` among them, and `answered`: the rate over those given."""
        return {**self.asked.report(), "passes": self.asked.n - self.given.n, "answered": self.given.report()}


ANSWERS: Final = Cells(
    (*RATES.heads, "passes", "rate without passes"),
    lambda record: (
        *RATES.of(record),
        count_text(record.get("passes")),
        percent_text(section(record, "answered").get("rate")),
    ),
)


class Known(msgspec.Struct, frozen=True):
    """The cases of somebody, and what others see of who it is."""

    share: Share
    shown: frozenset[str]

    def __add__(self, other: Known) -> Known:
        """The cases of both."""
        return Known(self.share + other.share, self.shown | other.shown)


@dataclass(slots=True)
class Identified:
    """A rate of those who are the same, and what was shown of them."""

    rate: Rate = field(default_factory=discussion_rate)
    shown: set[str] = field(default_factory=set)

    def add(self, counts: Known, question: str | None) -> None:
        """Add the cases of one discussion."""
        self.rate.add(counts.share, question)
        self.shown |= counts.shown

    def report(self) -> JsonObject:
        """The rate, and what was `shown`."""
        return {**self.rate.report(), "shown": [*sorted(self.shown)]}


@dataclass(slots=True)
class Total:
    """A sum."""

    sum: int = 0

    def add(self, counts: int, _question: str | None) -> None:
        """Add the count of one discussion."""
        self.sum += counts

    def report(self) -> int:
        """The sum."""
        return self.sum
