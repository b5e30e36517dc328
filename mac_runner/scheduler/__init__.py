"""Which turn is generated when: a pure state machine over three pools, and the asyncio shell that obeys it.

`run_conversations` is the way in, `Progress` what others may look at meanwhile. `RequestScheduler` with its events and
actions is the state machine by itself.
"""

from __future__ import annotations

from mac_runner.scheduler.accounting import Accounting
from mac_runner.scheduler.events import InvalidTransition
from mac_runner.scheduler.progress import Progress
from mac_runner.scheduler.recorder import Recorder
from mac_runner.scheduler.retry import RetryPolicy
from mac_runner.scheduler.run import RunResult, run_conversations
from mac_runner.scheduler.snapshot import ModelCounts, PoolSnapshot, WaitingTurn
from mac_runner.scheduler.state import RequestScheduler

__all__ = [
    "Accounting",
    "InvalidTransition",
    "ModelCounts",
    "PoolSnapshot",
    "Progress",
    "Recorder",
    "RequestScheduler",
    "RetryPolicy",
    "RunResult",
    "WaitingTurn",
    "run_conversations",
]
