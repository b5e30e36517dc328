"""The formats of exported tables: rows to bytes, batch by batch, so that a table is never held whole."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from mac_runner.data.arrow import arrow_batch, arrow_schema, cells_of
from mac_runner.flat import Cells, FlatColumn
from mac_runner.reports.exports import csv_cell, safe_text, utf8_text

Columns = Mapping[str, FlatColumn]
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
        """The lines of some rows."""
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
        """The lines of some rows."""
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
        """Nothing."""
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
        """A row group."""
        self._writer.write_batch(arrow_batch(self._columns, cells_of(batch, self._columns), self._schema))
        return self._sink.taken()

    def end(self) -> bytes:
        """The end of the file, which lists its parts."""
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


def encoder(kind: str, columns: Columns, metadata: Mapping[str, str]) -> Encoder:
    """What makes the files of a format."""
    match kind:
        case "csv":
            return CsvEncoder(columns, metadata)
        case "jsonl":
            return JsonlEncoder(columns, metadata)
        case _:
            return ParquetEncoder(columns, metadata)
