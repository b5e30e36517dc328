"""A rate over cases that come from discussions of questions.

The answers to one question go together, in one discussion and over several. So an interval goes by question: a question
counts as as many cases as it is worth (`intervals.ClusteredRate`). Where questions do not repeat, that is by
discussion. With a single question it is by discussion too; a topic that is discussed a hundred times is a hundred
clusters.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.environments.discussion.results.outcome import Share
from mac_runner.intervals import ClusteredRate
from mac_runner.results import ends
from mac_runner.types import JsonObject

_NUMBERS: Final[dict[str, int]] = {}
"""A number for each question that this process has read of, so that a rate keeps 4 bytes a count and no text."""


class Sums:
    """Counts added up by question, in as many columns as were asked for."""

    def __init__(self, columns: int) -> None:
        self._columns = tuple(array("I") for _ in range(columns))

    def add(self, question: str | None, *counts: int) -> None:
        """Add the counts of one discussion; one without a question is a cluster of its own."""
        number = _NUMBERS.setdefault(f"\n{len(_NUMBERS)}" if question is None else question, len(_NUMBERS))
        for column, count in zip(self._columns, counts, strict=True):
            if len(column) <= number:
                column.frombytes(bytes(column.itemsize * (number + 1 - len(column))))
            column[number] += count

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The counts of each question that has any."""
        return (counts for counts in zip(*self._columns, strict=True) if any(counts))


@dataclass(slots=True)
class Rate:
    """Cases, those that count, and how many discussions they come from."""

    n: int = 0
    count: int = 0
    discussions: int = 0
    _by_question: Sums = field(default_factory=lambda: Sums(2))
    _by_discussion: ClusteredRate = field(default_factory=ClusteredRate)

    def add(self, share: Share, question: str | None) -> None:
        """The cases of one discussion of `question`."""
        if share.cases == 0:
            return
        self.n += share.cases
        self.count += share.count
        self.discussions += 1
        self._by_question.add(question, share.count, share.cases)
        self._by_discussion.add(share.count, share.cases)

    def clustered(self) -> ClusteredRate:
        """The rate by question, or by discussion where there is one question alone."""
        by_question = ClusteredRate()
        for count, cases in self._by_question:
            by_question.add(count, cases)
        return by_question if by_question.games > 1 else self._by_discussion

    def report(self) -> JsonObject:
        """The counts, the rate, its interval, and the number of clusters that this goes by."""
        clustered = self.clustered()
        return {
            "n": self.n,
            "discussions": self.discussions,
            "clusters": clustered.games,
            "count": self.count,
            "rate": round(self.count / self.n, 4) if self.n else None,
            "interval": ends(clustered.interval),
        }


def reports(rates: Mapping[str, Rate] | Mapping[int, Rate]) -> JsonObject:
    """The report of each, in the order of their keys."""
    return {str(key): each.report() for key, each in sorted(rates.items())}
