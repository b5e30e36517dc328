"""A run as the figures of every run read it: its summary, and what one pass over its index counted."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Final

from mac_runner.figures.data import RunData
from mac_runner.intervals import ExactMean, one_cluster
from mac_runner.reports.rows import parse_row
from mac_runner.results import integer, objects, section
from mac_runner.types import JsonObject

_SUCH_AS: Final = 5


@dataclass(frozen=True, slots=True)
class Lengths:
    """A number of each conversation, and their mean."""

    values: array[float] = field(default_factory=lambda: array("d"))
    mean: ExactMean = field(default_factory=ExactMean)

    def add(self, value: int) -> None:
        """Count a conversation."""
        self.values.append(value)
        self.mean.add(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """A run, or a combination of a grid, and what came of its conversations."""

    data: RunData
    summary: JsonObject
    slug: str | None = ""
    """The directory of a combination in its grid; empty for a run of its own, None for one of two runs."""
    turns: Lengths = field(default_factory=Lengths)
    """Of each ended conversation, how many replies it took; the others likewise."""
    prompt_tokens: Lengths = field(default_factory=Lengths)
    completion_tokens: Lengths = field(default_factory=Lengths)
    failed_numbers: dict[str, list[int]] = field(default_factory=dict)
    """By reason, the first conversations that failed so."""

    @property
    def name(self) -> str:
        """What it is called in a figure of several runs."""
        return self.data.name

    def count(self, key: str) -> int:
        """How many conversations are `planned`, `finished` or `failed`."""
        return integer(section(self.summary, "conversations").get(key)) or 0

    @property
    def is_counted(self) -> bool:
        """Whether the engines say how many tokens they took."""
        return any(self.prompt_tokens.values)


def played(data: RunData, summary: JsonObject, slug: str | None = "") -> Played:
    """Read the index once."""
    found = Played(data=data, summary=summary, slug=slug)
    for row in map(parse_row, data.read_rows()):
        with one_cluster(row.cluster):
            found.turns.add(row.counts.turns)
            if row.tokens.is_counted:
                found.prompt_tokens.add(row.tokens.prompt)
                found.completion_tokens.add(row.tokens.completion)
        if row.reason is not None:
            numbers = found.failed_numbers.setdefault(row.reason, [])
            if len(numbers) < _SUCH_AS:
                numbers.append(row.index)
    return found


def failures(one: Played) -> list[JsonObject]:
    """The reasons of failures with their counts, the most frequent first."""
    return objects(one.summary.get("failures"))
