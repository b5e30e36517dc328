"""A table of a grid read back from its file, to be compared with the one expected."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from mac_runner.reports.exports import arrow_cells, csv_bytes
from mac_runner.reports.grid import GridTable

TextTable = list[list[str]]
"""A line of names, then the rows."""


class CellDiscrepancy(NamedTuple):
    """One cell that is not what it should be; of a line or a column that is missing the cells are None."""

    line: int
    column: str
    found: str | None
    expected: str | None

    def __str__(self) -> str:
        def told(text: str | None) -> str:
            return "missing" if text is None else f"{text!r:.80}"

        return f"line {self.line}, column {self.column}: is {told(self.found)}, expected {told(self.expected)}"


def csv_table(data: bytes) -> TextTable:
    """What a CSV file holds. Raises ValueError when it is none."""
    try:
        return [*csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)]
    except csv.Error as fault:
        raise ValueError(str(fault)) from fault


def expected_csv(table: GridTable) -> TextTable:
    """What the CSV file of a table holds."""
    return csv_table(csv_bytes(table))


def parquet_table(data: bytes) -> TextTable:
    """What a Parquet file holds, every cell with its type. Raises ValueError when it is none."""
    import pyarrow
    import pyarrow.parquet

    try:
        found = pyarrow.parquet.read_table(io.BytesIO(data))
        columns = [[repr(cell) for cell in found.column(name).to_pylist()] for name in found.column_names]
    except (pyarrow.ArrowException, OSError, KeyError) as fault:
        raise ValueError(str(fault)) from fault
    return [list(found.column_names), *map(list, zip(*columns, strict=True))]


def expected_parquet(table: GridTable) -> TextTable:
    """What the Parquet file of a table holds."""
    names, columns = arrow_cells(table)
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
