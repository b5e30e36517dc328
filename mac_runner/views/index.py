"""The list of a run's conversations by column, as the page of a run takes it.

A hundred thousand rows are small as columns: a word is sent once, and each row has its number. Columns are those of
`mac-run show RUN`, and all that `--where` can compare.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import replace

from mac_runner.reports.conversations import Listed
from mac_runner.reports.filters import words_of
from mac_runner.results import Value
from mac_runner.store.rows import DoneRow
from mac_runner.types import JsonObject
from mac_runner.view_model import ColumnView, IndexColumns, NumberColumn, WordColumn, WordsColumn


def column_views(how: Listed) -> tuple[ColumnView, ...]:
    """The columns of a list, in their order."""
    return tuple(ColumnView(name, column.kind, column.is_listed) for name, column in how.columns.items())


def index_columns(rows: Iterable[JsonObject | DoneRow], how: Listed, *, since: int = 0) -> IndexColumns:
    """The columns of index rows, which follow the first `since` rows of the run.

    Raises RunDirectoryError for a damaged row.
    """
    table = IndexTable(how)
    table.add(rows)
    return replace(table.columns(), since=since)


class IndexTable:
    """The list of conversations by column, which grows by rows. `version` counts replacements of rows before."""

    def __init__(self, how: Listed, version: int = 0) -> None:
        self.rows = 0
        self.how = how
        self.version = version
        self._words: dict[str, list[str | None]] = {}
        self._lists: dict[str, list[tuple[str, ...]]] = {}
        self._numbers: dict[str, list[float | None]] = {}
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        """The same words come again and again, and are kept once."""
        for name, column in how.columns.items():
            match column.kind:
                case "word":
                    self._words[name] = []
                case "words":
                    self._lists[name] = []
                case "number" | "truth":
                    self._numbers[name] = []

    def add(self, rows: Iterable[JsonObject | DoneRow]) -> None:
        """Add index rows, which may still be JSON. Raises RunDirectoryError for a damaged one, and then adds none."""
        found = [*map(self.how.values, rows)]
        self.rows += len(found)
        for name, words in self._words.items():
            words += [_word(values.get(name)) for values in found]
        for name, lists in self._lists.items():
            several = [tuple(words_of(values.get(name))) for values in found]
            lists += map(self._known.setdefault, several, several)
        for name, numbers in self._numbers.items():
            numbers += [_number(values.get(name)) for values in found]

    def columns(self, since: int = 0, most: int | None = None) -> IndexColumns:
        """The columns from row `since` on, or `most` rows of them, with the words that those rows have."""
        since = min(since, self.rows)
        until = self.rows if most is None else min(self.rows, since + most)
        part = slice(since, until)
        return IndexColumns(
            since=since,
            rows=until - since,
            words={name: _word_column(words[part]) for name, words in self._words.items()},
            lists={name: _words_column(lists[part]) for name, lists in self._lists.items()},
            numbers={name: NumberColumn(tuple(numbers[part])) for name, numbers in self._numbers.items()},
            version=self.version,
        )


def _word(value: Value) -> str | None:
    if value is None:
        return None
    return sys.intern(value if isinstance(value, str) else ", ".join(words_of(value)))


def _number(value: Value) -> float | None:
    return value + 0 if isinstance(value, int | float) else None


def _word_column(rows: Sequence[str | None]) -> WordColumn:
    codes = _numbered(word for word in rows if word is not None)
    return WordColumn(tuple(codes), tuple(-1 if word is None else codes[word] for word in rows))


def _words_column(rows: Sequence[tuple[str, ...]]) -> WordsColumn:
    known = dict.fromkeys(rows)
    codes = _numbered(chain.from_iterable(known))
    lists = {words: tuple(map(codes.__getitem__, words)) for words in known}
    return WordsColumn(tuple(codes), tuple(map(lists.__getitem__, rows)))


def _numbered(words: Iterable[str]) -> dict[str, int]:
    """Each word with its number, in the order in which they come."""
    return {word: code for code, word in enumerate(dict.fromkeys(words))}
