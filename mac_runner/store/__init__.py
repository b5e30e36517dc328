"""The run directory: the only room that writes.

Two promises. *Acknowledged is permanent*: a conversation counts as done only after its transcript and then its note
in the journal are on the disk. *Work may repeat, results may not*: one canonical transcript per task, whatever happens.

`open_run` begins or resumes a run, `survey` looks without touching, `read_run` reads for reports, `verify_run` checks,
`merge_runs` makes one run directory of several, `read_standing` tells how one stands.
"""

from __future__ import annotations

from mac_runner.store.disk import Disk, System
from mac_runner.store.findings import Finding, FindingKind, VerifyReport
from mac_runner.store.grid import GridEntry, GridRecord, grid_entries, is_grid, read_grid
from mac_runner.store.grid_run import GridRun, grid_accounting, open_grid, write_tables
from mac_runner.store.grid_standing import GridStanding, read_grid_standing
from mac_runner.store.manifest import Counts
from mac_runner.store.merging import Merged, merge_runs
from mac_runner.store.reader import RunContents, has_run, read_run
from mac_runner.store.recovery import Repairs, is_sound
from mac_runner.store.run import Run, open_run
from mac_runner.store.session import encode_for_reading
from mac_runner.store.sessions import merge_accounting
from mac_runner.store.space import Need
from mac_runner.store.standing import SessionStanding, Standing, read_standing
from mac_runner.store.survey import Survey, is_complete, survey
from mac_runner.store.transcripts import (
    build_transcript,
    in_wall_clock_order,
    index_row,
    replies_before_failure,
    replies_of,
    task_of,
    without_timing,
)
from mac_runner.store.verify import verify_run

__all__ = [
    "Counts",
    "Disk",
    "Finding",
    "FindingKind",
    "GridEntry",
    "GridRecord",
    "GridRun",
    "GridStanding",
    "Merged",
    "Need",
    "Repairs",
    "Run",
    "RunContents",
    "SessionStanding",
    "Standing",
    "Survey",
    "System",
    "VerifyReport",
    "build_transcript",
    "encode_for_reading",
    "grid_accounting",
    "grid_entries",
    "has_run",
    "in_wall_clock_order",
    "index_row",
    "is_complete",
    "is_grid",
    "is_sound",
    "merge_accounting",
    "merge_runs",
    "open_grid",
    "open_run",
    "read_grid",
    "read_grid_standing",
    "read_run",
    "read_standing",
    "replies_before_failure",
    "replies_of",
    "survey",
    "task_of",
    "verify_run",
    "without_timing",
    "write_tables",
]
