"""The run directory: the only room that writes.

Two promises. *Acknowledged is permanent*: a conversation counts as done only after its transcript and then its record
in the journal are on the disk. *Work may repeat, results may not*: one canonical transcript per task, whatever happens.

`open_run` begins or continues a run, `survey` looks without touching, `read_run` reads for reports, `verify_run`
checks, `merge_runs` makes one run directory of several. `open_grid` and `read_grid` do the same for a grid.
`read_standing` says how far a run or a grid is.

From the bottom up: `layout` and `records` (paths and lines), `machine`, `disk` and `lock`; `transcripts`, `journal` and
`manifest` (the files); `identity` (whose they are); `run_state` (what the journal says); `session` behind `writer`
(what is written, and when); `leases` (who may play which shard); `recovery` (how a session begins); `recording` (a run
under way), `run` (a run that is read), `standing`, `verify`, `merge` and `grid` (what others call).
"""

from __future__ import annotations

from mac_runner.store.disk import Disk, System
from mac_runner.store.grid import (
    GridEntry,
    GridRecord,
    GridRecorder,
    begun_combinations,
    grid_entries,
    grid_usage,
    is_grid,
    open_grid,
    read_grid,
    read_standing,
    used_in,
    write_tables,
)
from mac_runner.store.identity import Invocation, has_run
from mac_runner.store.leases import LeasesRecord, read_leases
from mac_runner.store.manifest import Counts
from mac_runner.store.merge import Merged, merge_runs
from mac_runner.store.recording import RunRecorder, open_run
from mac_runner.store.records import encode_for_reading
from mac_runner.store.recovery import Repairs, is_sound
from mac_runner.store.run import Run, read_run
from mac_runner.store.run_state import SessionStanding, merge_accounting
from mac_runner.store.space import Need
from mac_runner.store.standing import (
    Combination,
    ShardsStanding,
    Standing,
    Survey,
    Worker,
    is_complete,
    read_workers,
    survey,
)
from mac_runner.store.transcripts import (
    build_transcript,
    in_wall_clock_order,
    index_row,
    replies_before_failure,
    replies_of,
    task_of,
    without_timing,
)
from mac_runner.store.verify import Finding, FindingKind, VerifyReport, verify_run

__all__ = [
    "Combination",
    "Counts",
    "Disk",
    "Finding",
    "FindingKind",
    "GridEntry",
    "GridRecord",
    "GridRecorder",
    "Invocation",
    "LeasesRecord",
    "Merged",
    "Need",
    "Repairs",
    "Run",
    "RunRecorder",
    "SessionStanding",
    "ShardsStanding",
    "Standing",
    "Survey",
    "System",
    "VerifyReport",
    "Worker",
    "begun_combinations",
    "build_transcript",
    "encode_for_reading",
    "grid_entries",
    "grid_usage",
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
    "read_leases",
    "read_run",
    "read_standing",
    "read_workers",
    "replies_before_failure",
    "replies_of",
    "survey",
    "task_of",
    "used_in",
    "verify_run",
    "without_timing",
    "write_tables",
]
