"""Flat tables as Arrow: batches of rows, whole tables, and the schema with what each column means.

pyarrow is heavy and therefore optional; it is imported where a table is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.extras import install_command
from mac_runner.flat import Cells, FlatColumn, Row
from mac_runner.reports.exports import arrow_types, utf8_text

if TYPE_CHECKING:
    import pyarrow

ROWS_AT_ONCE: Final = 10_000
"""How many rows a batch has at most."""
CHARS_AT_ONCE: Final = 32 << 20
"""How many characters the texts of a batch have, about, at most."""

Columns = Mapping[str, FlatColumn]


def check_arrow(what: str) -> None:
    """Raise ConfigError saying how to install pyarrow where it is not installed."""
    if find_spec("pyarrow") is None:
        raise ConfigError(f"{what}: pyarrow is not installed; {install_command('data')}")


def arrow_schema(columns: Columns, metadata: Mapping[str, str] | None = None) -> pyarrow.Schema:
    """The schema of a table; each column has its meaning, and its unit if it has one."""
    import pyarrow

    types = arrow_types()
    fields = [
        pyarrow.field(utf8_text(name), types[column.kind], metadata=_about(column)) for name, column in columns.items()
    ]
    return pyarrow.schema(fields, metadata=dict(metadata or {}))


def _about(column: FlatColumn) -> dict[str, str]:
    unit = {"unit": column.unit} if column.unit else {}
    return {"meaning": utf8_text(column.meaning), **unit}


def arrow_batch(columns: Columns, held: Mapping[str, Sequence[Cells]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """The cells of each column as one batch. Raises RunDirectoryError for a cell that does not fit its column."""
    import pyarrow

    arrays = []
    for (name, column), field in zip(columns.items(), schema, strict=True):
        cells = held[name]
        try:
            try:
                arrays.append(pyarrow.array(cells, type=field.type))
            except UnicodeEncodeError:
                arrays.append(pyarrow.array(map(_utf8, cells), type=field.type))
        except (pyarrow.ArrowException, OverflowError) as fault:
            raise RunDirectoryError(
                f"column {name!r}: a cell is not of the type {column.kind} ({fault}); check the run with verify"
            ) from fault
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def _utf8(cell: Cells) -> Cells:
    """A cell as UTF-8 can hold it: half a surrogate pair is written out."""
    if isinstance(cell, str):
        return utf8_text(cell)
    if isinstance(cell, list) and cell and isinstance(cell[0], str):
        return [utf8_text(one) for one in cell]
    return cell


def cells_of(rows: Collection[Row], columns: Iterable[str]) -> dict[str, list[Cells]]:
    """Of each column, the cells that rows have in it."""
    return {name: [row.get(name) for row in rows] for name in columns}


Held = TypeVar("Held")


class Batcher(Generic[Held]):
    """Gathers rows until there are many, or long ones."""

    def __init__(self, size_chars: Callable[[Held], int]) -> None:
        self._size_chars = size_chars
        self._held: list[Held] = []
        self._chars = 0

    def add(self, row: Held) -> list[Held] | None:
        """Add a row; returns all that were gathered where that is enough."""
        self._held.append(row)
        self._chars += self._size_chars(row)
        return self.rest() if len(self._held) >= ROWS_AT_ONCE or self._chars >= CHARS_AT_ONCE else None

    def rest(self) -> list[Held]:
        """All that was gathered since the last time."""
        held, self._held, self._chars = self._held, [], 0
        return held


def batches(rows: Iterable[Held], size_chars: Callable[[Held], int]) -> Iterator[list[Held]]:
    """The rows in lists, each bounded in rows and in characters."""
    held = Batcher(size_chars)
    for row in rows:
        if (batch := held.add(row)) is not None:
            yield batch
    if rest := held.rest():
        yield rest


def size_chars(row: Row) -> int:
    """How large a row is, about."""
    return sum(map(_size, row.values()))


def _size(cell: Cells) -> int:
    """The characters of a text, of messages and of a list of numbers, in which a number counts as eight."""
    if isinstance(cell, str):
        return len(cell)
    if not isinstance(cell, list) or not cell:
        return 0
    match cell[0]:
        case {"content": _}:
            return sum(len(each["content"]) for each in cell)
        case str():
            return sum(map(len, cell))
        case _:
            return 8 * len(cell)
