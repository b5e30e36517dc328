"""Which turn is generated when: a pure state machine over three pools, and the asyncio shell that obeys it.

`run_conversations` plays one experiment, `run_pooled` several on the same engines; `Progress` is what others may see
meanwhile. `RequestScheduler` with its events and actions is the state machine by itself.
"""

from __future__ import annotations

from mac_runner.scheduler.accounting import Accounting
from mac_runner.scheduler.events import InvalidTransition
from mac_runner.scheduler.progress import Progress
from mac_runner.scheduler.recorder import Recorder, RunLog
from mac_runner.scheduler.retry import RetryPolicy
from mac_runner.scheduler.run import RunResult, run_conversations, run_pooled
from mac_runner.scheduler.snapshot import ModelCounts, PoolSnapshot, WaitingTurn
from mac_runner.scheduler.state import RequestScheduler
from mac_runner.scheduler.work import Job, Source, Work

__all__ = [
    "Accounting",
    "InvalidTransition",
    "Job",
    "ModelCounts",
    "PoolSnapshot",
    "Progress",
    "Recorder",
    "RequestScheduler",
    "RetryPolicy",
    "RunLog",
    "RunResult",
    "Source",
    "WaitingTurn",
    "Work",
    "run_conversations",
    "run_pooled",
]
