"""What a grid has come to: its rows, its summary, and the files that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mac_runner.cli.grid.parts import GridSetup, Part
from mac_runner.cli.results import summary_of
from mac_runner.reports import GridRow, csv_bytes, grid_table, has_parquet, parquet_bytes, summarise_grid
from mac_runner.store import GridRecord, encode_for_reading, has_run, read_run
from mac_runner.types import JsonObject


class GridResults(NamedTuple):
    """The rows of the table, and the summary over them."""

    rows: tuple[GridRow, ...]
    summary: JsonObject

    def files(self) -> dict[str, bytes]:
        """The files of the grid's directory that tell it; Parquet only where it can be written."""
        table = grid_table(self.rows)
        typed = {"grid.parquet": parquet_bytes(table)} if has_parquet() else {}
        # The summary last: it says of when the tables are.
        return {"grid.csv": csv_bytes(table), **typed, "summary.json": encode_for_reading(self.summary)}


def gather(
    setup: GridSetup, record: GridRecord, accounting: JsonObject, is_complete: Callable[[Part], bool]
) -> GridResults:
    """Read what stands in the directories of the combinations that are asked for."""
    sessions = {entry.slug: entry.session for entry in record.entries}
    rows = tuple(
        GridRow(
            slug=part.slug,
            values=part.combination.values,
            session=sessions[part.slug],
            summary=_summary(part),
        )
        for part in setup.parts
    )
    summary = summarise_grid(
        name=setup.grid.name,
        profile=setup.grid.profile,
        rows=rows,
        complete=sum(map(is_complete, setup.parts)),
        left_out=setup.left_out,
        accounting=accounting,
    )
    return GridResults(rows, summary)


def _summary(part: Part) -> JsonObject | None:
    """The summary of a combination, made of what its directory holds: the one that is written there is for people."""
    return summary_of(read_run(part.directory)) if has_run(part.directory) else None
