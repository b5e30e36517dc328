"""A rate over cases that come from discussions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mac_runner.environments.discussion.results.outcome import Share
from mac_runner.results import rate
from mac_runner.types import JsonObject


@dataclass(slots=True)
class Rate:
    """Cases, those that count, and how many discussions they come from."""

    n: int = 0
    count: int = 0
    discussions: int = 0

    def add(self, share: Share) -> None:
        """The cases of one discussion."""
        self.n += share.cases
        self.count += share.count
        self.discussions += share.cases > 0

    def report(self) -> JsonObject:
        """The counts, the rate and its interval."""
        return {"n": self.n, "discussions": self.discussions, "count": self.count, **rate(self.count, self.n)}


def reports(rates: Mapping[str, Rate] | Mapping[int, Rate]) -> JsonObject:
    """The report of each, in the order of their keys."""
    return {str(key): each.report() for key, each in sorted(rates.items())}
