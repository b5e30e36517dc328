"""The results so far, as the live view shows them: `winner town 41%, mafia 55%` of the conversations that finished.

They are counted from outcomes in microseconds. The summary counts everything, with intervals, when the run is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from mac_runner.errors import RunDirectoryError
from mac_runner.results import Columns, Value
from mac_runner.types import JsonObject

VALUES_MAX: Final = 6
"""Values of a column that are shown, the most frequent ones."""
COLUMNS_MAX: Final = 4
"""Columns of an outcome without columns of its own that are shown."""
_WINNERS: Final = frozenset({"winner", "winners"})


@dataclass(slots=True)
class Tally:
    """Counts the headline values of outcomes; those of an environment without columns are its winners and truths."""

    columns: Columns | None
    finished: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    known: Counter[str] = field(default_factory=Counter)
    """By column, how many outcomes have a value."""

    def add(self, outcome: JsonObject) -> None:
        """Count one outcome. One that cannot be read is left to the summary, which says what is wrong with it."""
        try:
            values = self._values(outcome)
        except RunDirectoryError:
            return
        self.finished += 1
        for name, value in values.items():
            if value is not None:
                self.known[name] += 1
                self.counts.setdefault(name, Counter()).update(_words(value))

    def text(self) -> str:
        """`of 45: winner mafia 55%, town 41%`; empty before the first outcome and without anything to count."""
        parts = [part for name, counter in self.counts.items() if (part := self._part(name, counter))]
        return f"of {self.finished}: {', '.join(parts)}" if parts else ""

    def _part(self, name: str, counter: Counter[str]) -> str:
        shares = [f"{word} {count / self.known[name]:.0%}".strip() for word, count in counter.most_common(VALUES_MAX)]
        return f"{name} {', '.join(shares) or '0%'}"

    def _values(self, outcome: JsonObject) -> Mapping[str, Value]:
        if self.columns is not None:
            values = self.columns.read(outcome)
            return {name: values.get(name) for name, column in self.columns.of.items() if column.is_headline}
        found: dict[str, Value] = {}
        for name, value in outcome.items():
            if isinstance(value, bool) or (name in _WINNERS and isinstance(value, str)):
                found[name] = value
            elif name in _WINNERS and isinstance(value, list):
                found[name] = [each for each in value if isinstance(each, str)]
        return dict(list(found.items())[:COLUMNS_MAX])


def _words(value: object) -> list[str]:
    """What is counted of a value: each word once, a truth value without a word of its own, no number."""
    if value is True:
        return [""]
    if isinstance(value, str):
        return [value]
    return sorted({str(word) for word in value}) if isinstance(value, Sequence) else []
