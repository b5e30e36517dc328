"""Flat tables as Arrow and as files: rows to batches and bytes, so that a file is written without holding its table.

pyarrow is heavy and therefore optional; it is imported where a table is made.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.extras import install_command
from mac_runner.flat import Cells, FlatColumn, Row
from mac_runner.reports.exports import arrow_types, csv_cell, safe_text, utf8_text

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
    fields = []
    for name, column in columns.items():
        about = {"meaning": utf8_text(column.meaning), **({"unit": column.unit} if column.unit else {})}
        fields.append(pyarrow.field(utf8_text(name), types[column.kind], metadata=about))
    return pyarrow.schema(fields, metadata=dict(metadata or {}))


def arrow_batch(columns: Columns, held: Mapping[str, Sequence[Cells]], schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """The cells of each column as one batch. Raises RunDirectoryError for a cell that does not fit its column."""
    import pyarrow

    arrays = []
    pool = pyarrow.system_memory_pool()  # A long column grows in place there, and is copied in the default one.
    for (name, column), field in zip(columns.items(), schema, strict=True):
        cells = held[name]
        try:
            try:
                arrays.append(pyarrow.array(cells, type=field.type, memory_pool=pool))
            except UnicodeEncodeError:
                arrays.append(pyarrow.array(map(_utf8, cells), type=field.type, memory_pool=pool))
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


# The formats of files.

Batch = Sequence[Mapping[str, Cells]]

CSV: Final = "csv"
JSONL: Final = "jsonl"
PARQUET: Final = "parquet"
FORMATS: Final = (CSV, JSONL, PARQUET)


class Encoder(Protocol):
    """Makes the bytes of a file."""

    def rows(self, batch: Batch) -> bytes:
        """What the file has of some rows."""
        ...

    def end(self) -> bytes:
        """What the file ends with."""
        ...


class CsvEncoder:
    """CSV (RFC 4180) in UTF-8 with a line of names.

    A text that a spreadsheet would take for a formula has an apostrophe before it. A list is written as JSON.
    """

    def __init__(self, columns: Columns, _metadata: Mapping[str, str]) -> None:
        self._columns = columns
        self._out = io.StringIO()
        self._writer = csv.writer(self._out, lineterminator="\r\n")
        self._writer.writerow(map(safe_text, columns))

    def rows(self, batch: Batch) -> bytes:
        self._writer.writerows([csv_cell(row.get(name)) for name in self._columns] for row in batch)
        return self.end()

    def end(self) -> bytes:
        """What was not taken yet: of an empty table, the line of names."""
        text = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return text.encode("utf-8", "backslashreplace")


class JsonlEncoder:
    """A JSON object a line, in UTF-8; cells that hold JSON are part of it."""

    def __init__(self, columns: Columns, _metadata: Mapping[str, str]) -> None:
        self._names = [(name, f"{json.dumps(name, ensure_ascii=False)}:", columns[name].kind) for name in columns]

    def rows(self, batch: Batch) -> bytes:
        lines = (f"{{{','.join(self._cells(row))}}}\n" for row in batch)
        # Half a surrogate pair, once it is escaped, is what JSON itself writes for it.
        return "".join(lines).encode("utf-8", "backslashreplace")

    def _cells(self, row: Mapping[str, Cells]) -> list[str]:
        return [
            f"{head}{cell if kind == 'json' and isinstance(cell, str) else _json(cell)}"
            for name, head, kind in self._names
            for cell in (row.get(name),)
        ]

    def end(self) -> bytes:
        return b""


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class ParquetEncoder:
    """Parquet with zstd; each column has its own type and its meaning as metadata."""

    def __init__(self, columns: Columns, metadata: Mapping[str, str]) -> None:
        import pyarrow
        import pyarrow.parquet

        self._columns = columns
        self._sink = _Sink()
        self._schema = arrow_schema(columns, {name: utf8_text(text) for name, text in metadata.items()})
        self._writer: Any = pyarrow.parquet.ParquetWriter(
            pyarrow.PythonFile(self._sink, mode="w"), self._schema, compression="zstd"
        )

    def rows(self, batch: Batch) -> bytes:
        self._writer.write_batch(arrow_batch(self._columns, cells_of(batch, self._columns), self._schema))
        return self._sink.taken()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.taken()


class _Sink(io.RawIOBase):
    """Takes what is written until it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[bytes] = []
        self._size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        piece = bytes(memoryview(data))  # type: ignore[arg-type]  # Whatever has a buffer.
        self._held.append(piece)
        self._size_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._size_bytes

    def taken(self) -> bytes:
        """All that was written since the last time."""
        held, self._held = self._held, []
        return b"".join(held)


_ENCODERS: Final[Mapping[str, Callable[[Columns, Mapping[str, str]], Encoder]]] = {
    CSV: CsvEncoder,
    JSONL: JsonlEncoder,
    PARQUET: ParquetEncoder,
}


def encoder(kind: str, columns: Columns, metadata: Mapping[str, str]) -> Encoder:
    """What makes a file of a format."""
    return _ENCODERS[kind](columns, metadata)
