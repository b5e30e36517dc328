"""The list of a run's conversations by column, as the page of a run takes it.

A hundred thousand rows are small as columns: a word is sent once, and each row has its number. Columns are those of
`mac-run show RUN`, and all that `--where` can compare.
"""

from __future__ import annotations

from collections.abc import Iterable

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
    for row in rows:
        table.add(row)
    return replace(table.columns(), since=since)


class IndexTable:
    """The list of conversations by column, which grows by rows. `version` counts replacements of rows before."""

    def __init__(self, how: Listed, version: int = 0) -> None:
        self.rows = 0
        self.how = how
        self.version = version
        self._words: dict[str, _Words] = {}
        self._lists: dict[str, _Lists] = {}
        self._numbers: dict[str, _Numbers] = {}
        for name, column in how.columns.items():
            match column.kind:
                case "word":
                    self._words[name] = _Words()
                case "words":
                    self._lists[name] = _Lists()
                case "number" | "truth":
                    self._numbers[name] = _Numbers()

    def add(self, row: JsonObject | DoneRow) -> None:
        """Add an index row, which may still be JSON. Raises RunDirectoryError for a damaged one, which is not added."""
        values = self.how.values(row)
        self.rows += 1
        for made in (self._words, self._lists, self._numbers):
            for name, column in made.items():
                column.add(values.get(name))

    def columns(self, since: int = 0, most: int | None = None) -> IndexColumns:
        """The columns from row `since` on, or `most` rows of them, with the words that those rows have."""
        since = min(since, self.rows)
        until = self.rows if most is None else min(self.rows, since + most)
        part = slice(since, until)
        return IndexColumns(
            since=since,
            rows=until - since,
            words={name: made.column(part) for name, made in self._words.items()},
            lists={name: made.column(part) for name, made in self._lists.items()},
            numbers={name: made.column(part) for name, made in self._numbers.items()},
            version=self.version,
        )


class _Words:
    """A column of one word for each row."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows: list[int] = []

    def add(self, value: Value) -> None:
        if value is None:
            self._rows.append(-1)
            return
        word = value if isinstance(value, str) else ", ".join(words_of(value))
        self._rows.append(self._codes.setdefault(word, len(self._codes)))

    def column(self, part: slice) -> WordColumn:
        words, used = [*self._codes], dict[int, int]()
        codes = tuple(-1 if code < 0 else used.setdefault(code, len(used)) for code in self._rows[part])
        return WordColumn(tuple(words[code] for code in used), codes)


class _Lists:
    """A column of several words for each row."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._known: dict[tuple[str, ...], tuple[int, ...]] = {}
        """The same words come again and again."""
        self._rows: list[tuple[int, ...]] = []

    def add(self, value: Value) -> None:
        words = tuple(words_of(value))
        found = self._known.get(words)
        if found is None:
            codes = self._codes
            found = self._known[words] = tuple(codes.setdefault(word, len(codes)) for word in words)
        self._rows.append(found)

    def column(self, part: slice) -> WordsColumn:
        words, used = [*self._codes], dict[int, int]()
        lists = tuple(tuple(used.setdefault(code, len(used)) for code in codes) for codes in self._rows[part])
        return WordsColumn(tuple(words[code] for code in used), lists)


class _Numbers:
    """A column of numbers or truth values."""

    def __init__(self) -> None:
        self._rows: list[float | None] = []

    def add(self, value: Value) -> None:
        self._rows.append(value + 0 if isinstance(value, int | float) else None)

    def column(self, part: slice) -> NumberColumn:
        return NumberColumn(tuple(self._rows[part]))
