"""The run directory: the only room that writes.

Two promises. *Acknowledged is permanent*: a conversation counts as done only after its transcript and then its note
in the journal are on the disk. *Work may repeat, results may not*: one canonical transcript per task, whatever happens.

`open_run` begins or resumes a run, `survey` looks without touching, `read_run` reads for reports, `verify_run` checks.
"""

from __future__ import annotations

from mac_runner.store.disk import Disk, System
from mac_runner.store.manifest import Counts
from mac_runner.store.reader import RunContents, read_run
from mac_runner.store.run import Run, open_run
from mac_runner.store.survey import Survey, is_complete, survey
from mac_runner.store.transcripts import (
    build_transcript,
    in_wall_clock_order,
    index_row,
    replies_of,
    task_of,
    without_timing,
)
from mac_runner.store.verify import Finding, FindingKind, VerifyReport, verify_run

__all__ = [
    "Counts",
    "Disk",
    "Finding",
    "FindingKind",
    "Run",
    "RunContents",
    "Survey",
    "System",
    "VerifyReport",
    "build_transcript",
    "in_wall_clock_order",
    "index_row",
    "is_complete",
    "open_run",
    "read_run",
    "replies_of",
    "survey",
    "task_of",
    "verify_run",
    "without_timing",
]
