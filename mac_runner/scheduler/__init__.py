"""Which turn is generated when: a pure state machine over three pools, and the asyncio runner around it.

Read `state` (the pools' rules), `pools`, then `runner` (performs the actions), `attempt` (one request) and
`engine_policy` (what follows a fault). `run_pooled` plays the experiments of a run on the same engines; `Progress` is
what others may read meanwhile.
"""

from __future__ import annotations

from mac_runner.scheduler.attempt import Restoration
from mac_runner.scheduler.metrics import Accounting, Progress
from mac_runner.scheduler.pools import ModelCounts, PoolSnapshot, WaitingTurn
from mac_runner.scheduler.runner import RunResult, run_pooled
from mac_runner.scheduler.state import InvalidTransition, Job, Recorder, RequestScheduler, RunLog, Source, Work

__all__ = [
    "Accounting",
    "InvalidTransition",
    "Job",
    "ModelCounts",
    "PoolSnapshot",
    "Progress",
    "Recorder",
    "RequestScheduler",
    "Restoration",
    "RunLog",
    "RunResult",
    "Source",
    "WaitingTurn",
    "Work",
    "run_pooled",
]
