"""The files of a grid's table: CSV for every program, Parquet for those that keep types.

In CSV a text that a spreadsheet would take for a formula has an apostrophe before it, as spreadsheets write text.
Parquet needs pyarrow, which is heavy and therefore optional.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from mac_runner.flat import Cells
from mac_runner.reports.grid import GridTable

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_bytes(table: GridTable) -> bytes:
    """The table as CSV (RFC 4180) in UTF-8, with a line of names; a text with a line end is quoted."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(safe_text(column.name) for column in table.columns)
    writer.writerows(zip(*(map(csv_cell, column.cells) for column in table.columns), strict=True))
    return out.getvalue().encode("utf-8", "backslashreplace")


def has_parquet() -> bool:
    """Whether Parquet can be written here."""
    return find_spec("pyarrow") is not None


def parquet_bytes(table: GridTable) -> bytes:
    """The table as Parquet, every column of its own type."""
    import pyarrow
    import pyarrow.parquet

    types = arrow_types()
    names, arrays = [utf8_text(column.name) for column in table.columns], []
    for column in table.columns:
        cells = [utf8_text(cell) if isinstance(cell, str) else cell for cell in column.cells]
        arrays.append(pyarrow.array(cells, type=types[column.kind]))
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(arrays, names=names), out)
    return out.getvalue()


def arrow_types() -> Mapping[str, Any]:
    """The type of Parquet for each kind of column."""
    import pyarrow

    return {
        "text": pyarrow.string(),
        "integer": pyarrow.int64(),
        "number": pyarrow.float64(),
        "truth": pyarrow.bool_(),
        "texts": pyarrow.list_(pyarrow.string()),
        "integers": pyarrow.list_(pyarrow.int64()),
        "numbers": pyarrow.list_(pyarrow.float64()),
        "messages": pyarrow.list_(pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])),
        "json": pyarrow.string(),
    }


def csv_cell(cell: Cells) -> str:
    """A cell as CSV has it; a list is written as JSON."""
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case str():
            return safe_text(cell)
        case int() | float():
            return repr(cell)
        case _:
            return json.dumps(cell, ensure_ascii=False)


def safe_text(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def utf8_text(text: str) -> str:
    """The text as UTF-8 can hold it: half a surrogate pair is written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
