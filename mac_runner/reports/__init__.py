"""What a run or a grid found out, read from its run directory: summary, tables, status, transcripts as text."""

from __future__ import annotations

from mac_runner.reports.exports import (
    PARQUET_HINT,
    TextTable,
    cell_discrepancies,
    csv_bytes,
    csv_table,
    expected_csv,
    expected_parquet,
    has_parquet,
    parquet_bytes,
    parquet_table,
)
from mac_runner.reports.grid import (
    GridRow,
    GridTable,
    compare_combinations,
    grid_table,
    is_made_alike,
    lacks_stats,
    summarise_grid,
)
from mac_runner.reports.status import grid_status_json, grid_status_text, status_json, status_text
from mac_runner.reports.summary import summarise
from mac_runner.reports.tables import render_grid, render_summary, write_grid, write_summary
from mac_runner.reports.transcript import transcript_text, turns_text

__all__ = [
    "PARQUET_HINT",
    "GridRow",
    "GridTable",
    "TextTable",
    "cell_discrepancies",
    "compare_combinations",
    "csv_bytes",
    "csv_table",
    "expected_csv",
    "expected_parquet",
    "grid_status_json",
    "grid_status_text",
    "grid_table",
    "has_parquet",
    "is_made_alike",
    "lacks_stats",
    "parquet_bytes",
    "parquet_table",
    "render_grid",
    "render_summary",
    "status_json",
    "status_text",
    "summarise",
    "summarise_grid",
    "transcript_text",
    "turns_text",
    "write_grid",
    "write_summary",
]
