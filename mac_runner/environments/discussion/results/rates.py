"""A rate over cases that come from discussions of questions.

The answers to one question go together, in one discussion and over several. So an interval goes by question: a question
counts as as many cases as it is worth (`intervals.ClusteredRate`). Where questions do not repeat, that is by
discussion. With a single question it is by discussion too; a topic that is discussed a hundred times is a hundred
clusters. There the discussions of one deal are a cluster (`intervals.one_cluster`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from mac_runner.environments.discussion.results.outcome import Share
from mac_runner.intervals import ClusteredRate, current_cluster
from mac_runner.results import ends
from mac_runner.types import JsonObject

NUMBERS: Final[dict[str, int]] = {}
"""A number for each question that this process has read of, so that a rate keeps 4 bytes a count and no text."""


class Clusters:
    """Counts of discussions added up by question, in as many columns as were asked for; the last counts the cases.

    As long as all cases are of one question, each of its discussions is a cluster.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._cells = array("I")
        self._question: str | None = None
        self._cluster: object | None = None
        self._discussions: array[int] | None = array("I")
        """The counts of each discussion; None from a second question on, when they are not needed any more."""

    def add(self, question: str | None, *counts: int) -> None:
        """Add the counts of one discussion with a case; one without a question is a cluster of its own."""
        name = f"\ncluster {cluster}" if question is None and (cluster := current_cluster()) is not None else question
        number = None if name is None else NUMBERS.get(name)
        if number is None:
            number = len(NUMBERS)
            NUMBERS[f"\n{number}" if name is None else name] = number
        cells, place = self._cells, number * self._columns
        if place >= len(cells):
            cells.frombytes(bytes(cells.itemsize * (place + self._columns - len(cells))))
        for count in counts:
            if count:
                cells[place] += count
            place += 1
        if self._discussions is not None:
            if self._discussions and (question is None or question != self._question):
                self._discussions = None
            elif self._cluster is not None and self._cluster == current_cluster():
                for column, count in enumerate(counts, start=len(self._discussions) - self._columns):
                    self._discussions[column] += count
            else:
                self._question = question
                self._cluster = current_cluster()
                self._discussions.extend(counts)

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """The counts of each cluster that has any."""
        cells = self._cells if self._discussions is None else self._discussions
        columns = [cells[number :: self._columns] for number in range(self._columns)]
        return (counts for counts in zip(*columns, strict=True) if any(counts))


@dataclass(slots=True)
class Rate:
    """Cases, those that count, and how many discussions they come from."""

    n: int = 0
    count: int = 0
    discussions: int = 0
    _clusters: Clusters = field(default_factory=lambda: Clusters(2))

    def add(self, share: Share, question: str | None) -> None:
        """The cases of one discussion of `question`."""
        if share.cases == 0:
            return
        self.n += share.cases
        self.count += share.count
        self.discussions += 1
        self._clusters.add(question, share.count, share.cases)

    def clustered(self) -> ClusteredRate:
        """The rate by question, or by discussion where there is one question alone."""
        clustered = ClusteredRate()
        for count, cases in self._clusters:
            clustered.add(count, cases)
        return clustered

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
