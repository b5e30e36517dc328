"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.executors.base import QUICK_ENDS_MAX, QUICK_S, Job, Terminal
from mac_runner.executors.local import LocalExecutor
from mac_runner.executors.slurm import SlurmExecutor
