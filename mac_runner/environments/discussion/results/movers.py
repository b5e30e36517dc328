"""Who moved whom: for each author and each reader, how often the reader took over the author's other answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.results.outcome import DiscussionResult
from mac_runner.environments.discussion.results.rates import Rate
from mac_runner.results import Table, count_text, percent_text, section
from mac_runner.types import JsonObject

_SECTION: Final = "moved"
_READERS_SHOWN_MAX: Final = 12


class MoverResults:
    """Counts discussions one by one; its memory follows the number of pairs of agents."""

    def __init__(self) -> None:
        self._rates: dict[str, dict[str, Rate]] = {}

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion."""
        for author, readers in result.moved.items():
            rates = self._rates.setdefault(author, {})
            for reader, share in readers.items():
                rates.setdefault(reader, Rate()).add(share, result.question_id)

    def report(self) -> JsonObject:
        """`moved`: for each author and reader the rate of those followed among those read."""
        if not self._rates:
            return {}
        return {
            _SECTION: {
                author: {reader: rate.report() for reader, rate in sorted(readers.items())}
                for author, readers in sorted(self._rates.items())
            }
        }


def mover_tables(report: JsonObject) -> Iterator[Table]:
    """A matrix with a row for each author and a column for each reader; large ones are in the summary alone."""
    moved = section(report, _SECTION)
    readers = sorted({reader for author in moved for reader in section(moved, author)})
    if moved and len(readers) <= _READERS_SHOWN_MAX:
        rows = [(author, *(_cell(section(section(moved, author), reader)) for reader in readers)) for author in moved]
        yield Table("who moved whom: followed of those who read another answer", ("author",), tuple(readers), rows)


def _cell(rate: JsonObject) -> str:
    if not rate:
        return ""
    return f"{count_text(rate.get('count'))}/{count_text(rate.get('n'))} {percent_text(rate.get('rate'))}"
