"""What a run found out, read from its run directory and never from a running scheduler: the summary and its tables.

Likewise what a grid of runs found out: one table over all of them."""

from __future__ import annotations

from mac_runner.reports.exports import PARQUET_HINT, csv_bytes, has_parquet, parquet_bytes
from mac_runner.reports.grid import GridRow, GridTable, grid_table
from mac_runner.reports.grid_standing import grid_standing_json, tell_grid_standing
from mac_runner.reports.grid_summary import summarise_grid
from mac_runner.reports.grid_text import render_grid, write_grid
from mac_runner.reports.intervals import Interval, wilson
from mac_runner.reports.standing import standing_json, tell_standing
from mac_runner.reports.summary import summarise
from mac_runner.reports.tables import (
    TextTable,
    cell_discrepancies,
    csv_table,
    expected_csv,
    expected_parquet,
    parquet_table,
)
from mac_runner.reports.telling import tell_transcript, tell_turns
from mac_runner.reports.text import render_summary, write_summary

__all__ = [
    "PARQUET_HINT",
    "GridRow",
    "GridTable",
    "Interval",
    "TextTable",
    "cell_discrepancies",
    "csv_bytes",
    "csv_table",
    "expected_csv",
    "expected_parquet",
    "grid_standing_json",
    "grid_table",
    "has_parquet",
    "parquet_bytes",
    "parquet_table",
    "render_grid",
    "render_summary",
    "standing_json",
    "summarise",
    "summarise_grid",
    "tell_grid_standing",
    "tell_standing",
    "tell_transcript",
    "tell_turns",
    "wilson",
    "write_grid",
    "write_summary",
]
