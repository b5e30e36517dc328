"""A table as bytes: CSV for every program, Parquet for those that keep types.

In CSV a text that a spreadsheet would take for a formula is written with an apostrophe before it, as spreadsheets
themselves do for text; everything else stands as it is. Parquet needs pyarrow, which is heavy and therefore optional.
"""

from __future__ import annotations

import csv
import io
from importlib.util import find_spec

from mac_runner.reports.grid import Cell, Column, GridTable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
PARQUET_HINT = "for Parquet beside it: pip install 'mac_runner[parquet]'"


def csv_bytes(table: GridTable) -> bytes:
    """The table as CSV in UTF-8 as RFC 4180 has it, with a line of names; a text that holds a line end is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(_safe(column.name) for column in table.columns)
    writer.writerows(zip(*(map(_csv_cell, column.cells) for column in table.columns), strict=True))
    return out.getvalue().encode("utf-8", "backslashreplace")


def has_parquet() -> bool:
    """Whether Parquet can be written here."""
    return find_spec("pyarrow") is not None


def parquet_bytes(table: GridTable) -> bytes:
    """The table as Parquet, every column of its own type."""
    import pyarrow
    import pyarrow.parquet

    types = {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "truth": pyarrow.bool_(),
    }
    names, columns = arrow_cells(table)
    kinds = [types[column.kind] for column in table.columns]
    arrays = [pyarrow.array(cells, type=kind) for cells, kind in zip(columns, kinds, strict=True)]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=names), out)
    return out.getvalue()


def arrow_cells(table: GridTable) -> tuple[list[str], list[list[Cell]]]:
    """The names of the columns, and the cells of each, as Parquet holds them."""
    return [_utf8(column.name) for column in table.columns], [_arrow_cells(column) for column in table.columns]


def _csv_cell(cell: Cell) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case str():
            return _safe(cell)
        case _:
            return repr(cell)


def _safe(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def _arrow_cells(column: Column) -> list[Cell]:
    return [_utf8(cell) if isinstance(cell, str) else cell for cell in column.cells]


def _utf8(text: str) -> str:
    """The text as UTF-8 can hold it: half a surrogate pair is written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
