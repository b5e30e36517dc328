"""What the tests of this room hold on to below its face, so that a move inside the room changes no test."""

from __future__ import annotations

from mac_runner.scheduler.attempt import LOOP_PASS_S_MAX, AttemptRunner, LoopFairness, Unrecorded, generate
from mac_runner.scheduler.conversation import LiveConversation
from mac_runner.scheduler.engine_policy import (
    ANSWERS_TO_GROW,
    ENGINE_BUSY_S_MAX,
    ENGINE_DEATHS_PER_TURN_MAX,
    ENGINE_SUSPECT_CONVERSATIONS_MIN,
    REFUSALS_TO_SHRINK,
    REST_S,
    RETRIES_MIN,
    RETRIES_PER_SLOT,
    TURNED_AWAY_MAX,
    ConcurrencyLimit,
    EngineState,
    Fail,
    GiveUpEngine,
    NextStep,
    RequestState,
    Retry,
    jitter,
    next_step,
    pause_s,
)
from mac_runner.scheduler.policies import EngineWeights, Policies, PolicyWindow
from mac_runner.scheduler.pools import (
    OPEN_CONVERSATIONS_PER_SLOT_MAX,
    READY_HEAP_DEAD_MAX,
    HeldTurn,
    ModelPool,
    Pools,
    Stage,
)
from mac_runner.scheduler.runner import CHECKPOINT_INTERVAL_S, SHUTDOWN_GRACE_S
from mac_runner.scheduler.state import (
    Action,
    Answered,
    Broken,
    Depart,
    Event,
    Faulted,
    Finished,
    ModelReady,
    Open,
    Opened,
    Resized,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    Settle,
    Stop,
    TasksExhausted,
)
