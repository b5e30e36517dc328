"""Frames: what the displays show, a frozen picture of the run at one moment.

`read_progress` takes a `Reading` off a running scheduler. `rates.Meter` adds the rates and the time left, which need
earlier readings, and makes it a `StatusFrame`. Displays see only frames, so their output is tested without a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mac_runner.bottleneck import Usage
from mac_runner.fleet.model import LaneStatus
from mac_runner.scheduler import Progress, WaitingTurn
from mac_runner.scheduler.policies import PolicyWindow
from mac_runner.types import TokenCount

STATUS_ROWS_MAX: Final = 60
"""Waiting turns that are listed per pool, on the tallest terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSlots:
    """One model's slots."""

    name: str
    in_flight: int
    slots: int
    """The slots in effect."""
    ready: int = 0
    """Turns that wait for a slot."""
    utilisation: float | None = None
    """The part of the slot time used since the start."""
    unanswered_s: float | None = None
    """How long an engine under suspicion has answered no request; None for one that works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReading:
    """The weights of one model that a trainer changes."""

    model: str
    version: int
    lag: int
    """How many versions the oldest open conversation is behind."""
    is_waiting: bool
    """Whether no conversation may begin before the next version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One waiting turn."""

    task_id: str
    round: int
    agent: str
    model: str
    note: str = ""
    """Why it waits, such as `after Ann` or `retry 2`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The totals and pools of a run at one moment.

    `finished`, `failed` and `written` count conversations of all sessions; `turns`, `corrections`, `defaults`, `tokens`
    and `results` are this session's.
    """

    experiment_name: str
    profile: str
    elapsed_s: float
    planned: int
    finished: int
    failed: int
    written: int
    resumed_with: int = 0
    """Conversations that had ended when this session began."""
    open: int = 0
    models: tuple[ModelSlots, ...] = ()
    ready: int = 0
    blocked: int = 0
    backing_off: int = 0
    ready_rows: tuple[TurnRow, ...] = ()
    pending_rows: tuple[TurnRow, ...] = ()
    """Turns that wait for other agents or back off before a retry."""
    turns: int = 0
    turns_ended: int | None = None
    """The part of `turns` in ended conversations; a basis for the time left before many have ended."""
    corrections: int = 0
    defaults: int = 0
    default_shares: Mapping[str, float] = field(default_factory=dict)
    """By agent definition, the part of its turns that ended with the default act."""
    results: str = ""
    """The results so far, in words."""
    usage: Usage | None = None
    is_all_open: bool = False
    """Whether no conversation is left to be opened."""
    concurrency: int | None = None
    """The bound on the requests of all models together."""
    tokens: TokenCount = field(default_factory=TokenCount)
    silent_models: tuple[str, ...] = ()
    """Models that report no token counts; `tokens` are those of the others."""
    lanes: tuple[LaneStatus, ...] = ()
    """The engines of the run's fleet."""
    policies: tuple[PolicyReading, ...] = ()

    @property
    def ended(self) -> int:
        """Conversations that have ended, finished or failed."""
        return self.finished + self.failed

    @property
    def unanswered_s(self) -> float | None:
        """How long no engine has answered; None while one works."""
        silences = [model.unanswered_s for model in self.models]
        return min((s for s in silences if s is not None), default=None) if None not in silences else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFrame:
    """A reading with its rates. A rate is None until it is known."""

    reading: Reading
    turns_per_s: float | None = None
    tokens_per_s: float | None = None
    """Generated tokens."""
    conversations_per_s: float | None = None
    eta_s: float | None = None
    limit: str | None = None
    """What limits the run now."""


def read_progress(
    progress: Progress,
    *,
    experiment_name: str,
    profile: str,
    results: str = "",
    lanes: Sequence[LaneStatus] = (),
    windows: Mapping[str, PolicyWindow] = MappingProxyType({}),
) -> Reading:
    """The run now. The cost does not grow with the run."""
    pools = progress.snapshot(STATUS_ROWS_MAX)
    return Reading(
        experiment_name=experiment_name,
        profile=profile,
        elapsed_s=progress.elapsed_s,
        planned=progress.planned,
        finished=progress.finished,
        failed=progress.failed,
        written=progress.written,
        resumed_with=progress.resumed_with,
        open=progress.open,
        models=tuple(
            ModelSlots(
                name=counts.model,
                in_flight=counts.in_flight,
                slots=counts.slots,
                ready=counts.ready,
                utilisation=progress.utilisation(counts.model),
                unanswered_s=progress.unanswered_s(counts.model),
            )
            for counts in pools.models
        ),
        ready=pools.ready,
        blocked=pools.blocked,
        backing_off=pools.backing_off,
        ready_rows=tuple(row(progress.task_id(waiting.conversation), waiting) for waiting in pools.ready_rows),
        pending_rows=tuple(row(progress.task_id(waiting.conversation), waiting) for waiting in pools.pending_rows),
        turns=progress.turns,
        turns_ended=progress.turns_ended,
        corrections=progress.corrections,
        defaults=progress.defaults,
        default_shares=progress.default_shares(),
        results=results,
        usage=progress.usage,
        is_all_open=progress.is_all_open,
        concurrency=progress.concurrency,
        tokens=progress.tokens,
        silent_models=progress.silent_models,
        lanes=tuple(lanes),
        policies=tuple(
            PolicyReading(model=model, version=window.version, lag=window.lag, is_waiting=not window.is_open)
            for model, window in windows.items()
        ),
    )


def row(task_id: str, waiting: WaitingTurn) -> TurnRow:
    """A waiting turn as the view shows it."""
    turn = waiting.turn
    return TurnRow(task_id=task_id, round=turn.round, agent=turn.agent, model=turn.model, note=_note(waiting))


def _note(waiting: WaitingTurn) -> str:
    if waiting.is_backing_off:
        return f"retry {waiting.sendings}"
    if waiting.waits_for:
        return f"after {', '.join(waiting.waits_for)}"
    if waiting.turn.attempt:
        return f"correction {waiting.turn.attempt}"
    return "goes on" if waiting.turn.step else ""
