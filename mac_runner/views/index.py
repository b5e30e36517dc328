"""The list of a run's conversations by column, as the page of a run takes it.

A hundred thousand rows are small as columns: a word is sent once, and each row has its number. Columns are those of
`mac-run show RUN`, and all that `--where` can compare.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Generic, TypeVar

from msgspec.structs import replace

from mac_runner.reports.conversations import Listed
from mac_runner.reports.filters import words_of
from mac_runner.results import Value
from mac_runner.store.rows import DoneRow
from mac_runner.types import JsonObject
from mac_runner.view_model import ColumnView, IndexColumns, NumberColumn, WordColumn, WordsColumn

T = TypeVar("T")

_NUMBER: Final = (int, float)


def column_views(how: Listed) -> tuple[ColumnView, ...]:
    """The columns of a list, in their order."""
    return tuple(ColumnView(name, column.kind, column.is_listed) for name, column in how.columns.items())


def index_columns(rows: Iterable[JsonObject | DoneRow], how: Listed, *, since: int = 0) -> IndexColumns:
    """The columns of index rows, which follow the first `since` rows of the run.

    Raises RunDirectoryError for a damaged row.
    """
    table = IndexTable(how)
    table.add([*rows])
    return replace(table.columns(), since=since)


class IndexTable:
    """The list of conversations by column, which grows by rows. `version` counts replacements of rows before."""

    def __init__(self, how: Listed, version: int = 0) -> None:
        self.rows = 0
        self.how = how
        self.version = version
        kinds = {name: column.kind for name, column in how.columns.items()}
        self._words = {name: _Coded[str]() for name, kind in kinds.items() if kind == "word"}
        self._lists = {name: _Coded[tuple[str, ...]]() for name, kind in kinds.items() if kind == "words"}
        self._numbers = {name: list[float | None]() for name, kind in kinds.items() if kind in ("number", "truth")}

    def add(self, rows: Sequence[JsonObject | DoneRow]) -> None:
        """Add index rows, which may still be JSON. Raises RunDirectoryError for a damaged one, and then adds none."""
        for name, values in self.how.by_column(rows):
            if name in self._words:
                self._words[name].add(map(_word, values))
            elif name in self._lists:
                self._lists[name].add(map(_words, values))
            else:
                self._numbers[name] += map(_number, values)
        self.rows += len(rows)

    def columns(self, since: int = 0, most: int | None = None) -> IndexColumns:
        """The columns from row `since` on, or `most` rows of them, with the words that those rows have."""
        since = min(since, self.rows)
        until = self.rows if most is None else min(self.rows, since + most)
        part = slice(since, until)
        return IndexColumns(
            since=since,
            rows=until - since,
            words={name: WordColumn(*words.part(part)) for name, words in self._words.items()},
            lists={name: _words_column(*lists.part(part)) for name, lists in self._lists.items()},
            numbers={name: NumberColumn(tuple(numbers[part])) for name, numbers in self._numbers.items()},
            version=self.version,
        )


class _Coded(Generic[T]):
    """The values of a column by number: the same ones come again and again, and are kept once."""

    def __init__(self) -> None:
        self._known: dict[T, int] = {}
        self._codes: list[int] = []

    def add(self, values: Iterable[T | None]) -> None:
        known = self._known
        self._codes += [-1 if value is None else known.setdefault(value, len(known)) for value in values]

    def part(self, part: slice) -> tuple[tuple[T, ...], tuple[int, ...]]:
        """The values of some rows in the order in which they come, and their number in each of the rows, or -1."""
        codes, known = self._codes[part], tuple(self._known)
        numbers = _numbered(code for code in codes if code >= 0)
        values = tuple(known[code] for code in numbers)
        return values, tuple(map({**numbers, -1: -1}.__getitem__, codes))


def _word(value: Value) -> str | None:
    return value if value is None or isinstance(value, str) else ", ".join(words_of(value))


def _words(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else tuple(words_of(value))


def _number(value: Value) -> float | None:
    return value + 0 if isinstance(value, _NUMBER) else None


def _words_column(known: Sequence[tuple[str, ...]], codes: Sequence[int]) -> WordsColumn:
    numbers = _numbered(chain.from_iterable(known))
    lists = [tuple(map(numbers.__getitem__, words)) for words in known]
    return WordsColumn(tuple(numbers), tuple(map(lists.__getitem__, codes)))


def _numbered(values: Iterable[T]) -> dict[T, int]:
    """Each value with its number, in the order in which they come."""
    return {value: number for number, value in enumerate(dict.fromkeys(values))}
