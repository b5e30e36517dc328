"""What a run or a grid found out, read from its run directory: summary, tables, status, transcripts as text."""

from __future__ import annotations

from mac_runner.reports.conversations import list_lines, listed, listed_run, matching, parse_condition, unmet
from mac_runner.reports.ending import limit_reached, write_ending
from mac_runner.reports.exports import csv_bytes, has_parquet, parquet_bytes
from mac_runner.reports.failures import is_nothing_usable, nothing_finished, usability_warning
from mac_runner.reports.grid import (
    GridRow,
    GridTable,
    compare_combinations,
    grid_table,
    lacks_stats,
    summarise_grid,
    value_columns,
)
from mac_runner.reports.status import (
    lanes_json,
    status_json,
    status_text,
)
from mac_runner.reports.summary import Totals, summarise
from mac_runner.reports.tables import fitted, grid_tables, summary_tables, tables_named, write_tables
from mac_runner.reports.turns import (
    ALL,
    find_turn,
    printable_lines,
    prompt_text,
    replies_text,
    reply_text,
    thoughts_text,
    turns_of,
    turns_text,
)

__all__ = [
    "ALL",
    "GridRow",
    "GridTable",
    "Totals",
    "compare_combinations",
    "csv_bytes",
    "find_turn",
    "fitted",
    "grid_table",
    "grid_tables",
    "has_parquet",
    "is_nothing_usable",
    "lacks_stats",
    "lanes_json",
    "limit_reached",
    "list_lines",
    "listed",
    "listed_run",
    "matching",
    "nothing_finished",
    "parquet_bytes",
    "parse_condition",
    "printable_lines",
    "prompt_text",
    "replies_text",
    "reply_text",
    "status_json",
    "status_text",
    "summarise",
    "summarise_grid",
    "summary_tables",
    "tables_named",
    "thoughts_text",
    "turns_of",
    "turns_text",
    "unmet",
    "usability_warning",
    "value_columns",
    "write_ending",
    "write_tables",
]
