"""Tables that are written row by row, as CSV and Parquet: what is held of one does not grow with its length."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from mac_runner.errors import RunDirectoryError
from mac_runner.flat import Cells
from mac_runner.reports.exports import arrow_types, csv_cell, safe_text, utf8_text
from mac_runner.results import ExportColumn

ROWS_AT_ONCE: Final = 10_000
"""How many rows a piece of CSV and a row group of Parquet have at most."""

Columns = Mapping[str, ExportColumn]
Rows = Iterable[Mapping[str, Cells]]


def csv_pieces(columns: Columns, rows: Rows) -> Iterator[bytes]:
    """The table as CSV (RFC 4180) in UTF-8, piece by piece, with a line of names."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(map(safe_text, columns))
    for batch in _batches(rows):
        writer.writerows([csv_cell(row.get(name)) for name in columns] for row in batch)
        yield _taken(out)
    yield _taken(out)


def parquet_pieces(columns: Columns, rows: Rows) -> Iterator[bytes]:
    """The table as Parquet, piece by piece; each column has its own type and its meaning as metadata."""
    import pyarrow
    import pyarrow.parquet

    types = arrow_types()
    schema = pyarrow.schema(
        [
            pyarrow.field(utf8_text(name), types[column.kind], metadata={"meaning": utf8_text(column.meaning)})
            for name, column in columns.items()
        ]
    )
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(pyarrow.PythonFile(sink, mode="w"), schema) as writer:
        for batch in _batches(rows):
            try:
                arrays = [
                    pyarrow.array([_arrow_cell(row.get(name)) for row in batch], type=field.type)
                    for name, field in zip(columns, schema, strict=True)
                ]
            except (pyarrow.ArrowException, OverflowError) as fault:
                raise RunDirectoryError(
                    f"a cell does not fit its column: {fault}; check the run with verify"
                ) from fault
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))
            yield sink.taken()
    yield sink.taken()


PIECES: Final[Mapping[str, Callable[[Columns, Rows], Iterator[bytes]]]] = {
    "csv": csv_pieces,
    "parquet": parquet_pieces,
}
"""By the ending of a file, what makes its contents."""


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


def _batches(rows: Rows) -> Iterator[list[Mapping[str, Cells]]]:
    """The rows in lists of bounded length."""
    left = iter(rows)
    while batch := list(islice(left, ROWS_AT_ONCE)):
        yield batch


def _taken(out: io.StringIO) -> bytes:
    text = out.getvalue()
    out.seek(0)
    out.truncate()
    return text.encode("utf-8", "backslashreplace")


def _arrow_cell(cell: Cells) -> Cells:
    return utf8_text(cell) if isinstance(cell, str) else cell
