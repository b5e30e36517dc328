"""The list of a run's conversations by column, as the page of a run takes it.

A hundred thousand rows are small as columns: a word is sent once, and each row has its number. Columns are those of
`mac-run show RUN`, and all that `--where` can compare.
"""

from __future__ import annotations

from collections.abc import Iterable

from mac_runner.reports.conversations import Listed
from mac_runner.reports.filters import words_of
from mac_runner.results import Value
from mac_runner.types import JsonObject
from mac_runner.view_model import ColumnView, IndexColumns, NumberColumn, WordColumn, WordsColumn


def column_views(how: Listed) -> tuple[ColumnView, ...]:
    """The columns of a list, in their order."""
    return tuple(ColumnView(name, column.kind, column.is_listed) for name, column in how.columns.items())


def index_columns(rows: Iterable[JsonObject], how: Listed, *, since: int = 0) -> IndexColumns:
    """The columns of index rows, which follow the first `since` rows of the run.

    Raises RunDirectoryError for a damaged row.
    """
    words: dict[str, _Words] = {}
    lists: dict[str, _Lists] = {}
    numbers: dict[str, _Numbers] = {}
    for name, column in how.columns.items():
        match column.kind:
            case "word":
                words[name] = _Words()
            case "words":
                lists[name] = _Lists()
            case "number" | "truth":
                numbers[name] = _Numbers()
    columns: list[tuple[str, _Words | _Lists | _Numbers]] = [*words.items(), *lists.items(), *numbers.items()]
    count = 0
    for row in rows:
        count += 1
        values = how.values(row)
        for name, made in columns:
            made.add(values.get(name))
    return IndexColumns(
        since=since,
        rows=count,
        words={name: made.column() for name, made in words.items()},
        lists={name: made.column() for name, made in lists.items()},
        numbers={name: made.column() for name, made in numbers.items()},
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

    def column(self) -> WordColumn:
        return WordColumn(tuple(self._codes), tuple(self._rows))


class _Lists:
    """A column of several words for each row."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []

    def add(self, value: Value) -> None:
        codes = self._codes
        self._rows.append(tuple(codes.setdefault(word, len(codes)) for word in words_of(value)))

    def column(self) -> WordsColumn:
        return WordsColumn(tuple(self._codes), tuple(self._rows))


class _Numbers:
    """A column of numbers or truth values."""

    def __init__(self) -> None:
        self._rows: list[float | None] = []

    def add(self, value: Value) -> None:
        self._rows.append(value + 0 if isinstance(value, int | float) else None)

    def column(self) -> NumberColumn:
        return NumberColumn(tuple(self._rows))
