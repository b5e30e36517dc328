"""The files of a grid's table: CSV for every program, Parquet for those that keep types; written and read back.

In CSV a text that a spreadsheet would take for a formula has an apostrophe before it, as spreadsheets write text.
Parquet needs pyarrow, which is heavy and therefore optional.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from typing import Any, NamedTuple

from mac_runner.flat import Cell, Cells
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
    names, columns = _arrow_cells(table)
    kinds = [types[column.kind] for column in table.columns]
    arrays = [pyarrow.array(cells, type=kind) for cells, kind in zip(columns, kinds, strict=True)]
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


def _arrow_cells(table: GridTable) -> tuple[list[str], list[list[Cell]]]:
    """The names of the columns, and the cells of each, as Parquet holds them."""
    cells = [[utf8_text(cell) if isinstance(cell, str) else cell for cell in column.cells] for column in table.columns]
    return [utf8_text(column.name) for column in table.columns], cells


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


TextTable = list[list[str]]
"""A line of names, then the rows."""


class CellDiscrepancy(NamedTuple):
    """One cell that is not what it should be; None for a cell of a missing line or column."""

    line: int
    column: str
    found: str | None
    expected: str | None

    def __str__(self) -> str:
        found, expected = ("missing" if cell is None else f"{cell!r:.80}" for cell in (self.found, self.expected))
        return f"line {self.line}, column {self.column}: is {found}, expected {expected}"


def csv_table(data: bytes) -> TextTable:
    """What a CSV file holds. Raises ValueError for anything else."""
    try:
        return [*csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)]
    except csv.Error as fault:
        raise ValueError(str(fault)) from fault


def expected_csv(table: GridTable) -> TextTable:
    """What the CSV file of a table holds."""
    return csv_table(csv_bytes(table))


def parquet_table(data: bytes) -> TextTable:
    """What a Parquet file holds, every cell with its type. Raises ValueError for anything else."""
    import pyarrow
    import pyarrow.parquet

    try:
        # Without threads: one of its pool that still begins when the process ends aborts the process.
        found = pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)
        columns = [[repr(cell) for cell in found.column(name).to_pylist()] for name in found.column_names]
    except (pyarrow.ArrowException, OSError, KeyError) as fault:
        raise ValueError(str(fault)) from fault
    return [list(found.column_names), *map(list, zip(*columns, strict=True))]


def expected_parquet(table: GridTable) -> TextTable:
    """What the Parquet file of a table holds."""
    names, columns = _arrow_cells(table)
    return [names, *map(list, zip(*([repr(cell) for cell in cells] for cells in columns), strict=True))]


def cell_discrepancies(found: TextTable, expected: TextTable) -> Iterator[CellDiscrepancy]:
    """Every cell in which two tables differ, by the columns of the one expected; lines count from 1."""
    names = expected[0] if expected else []
    here = found[0] if found else []
    for name in here:
        if name not in names:
            yield CellDiscrepancy(1, name, name, None)
    for name in names:
        if name not in here:
            yield CellDiscrepancy(1, name, None, name)
    shared = [name for name in names if name in here]
    for line, (row, other) in enumerate(zip_longest(found[1:], expected[1:]), start=2):
        for name in shared:
            one, two = _cell(row, here.index(name)), _cell(other, names.index(name))
            if one != two:
                yield CellDiscrepancy(line, name, one, two)


def _cell(row: Sequence[str] | None, place: int) -> str | None:
    return None if row is None or place >= len(row) else row[place]
