"""What the status displays show: one frozen picture of the run at one moment.

A `Reading` is what can be read off a running scheduler as it stands: totals, pools, the first turns of each. A
`StatusFrame` adds what needs memory of earlier readings, the rates and the time left (see `rates.Meter`). Displays see
frames only, so how they look can be tested without a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mac_runner.types import TokenCount


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSlots:
    """One model's slots: how many are in use now, how many are in effect, and the part used since the start."""

    name: str
    in_flight: int
    slots: int
    utilisation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRow:
    """One waiting turn. `note` says what a person wants to know of it: whom it waits for, that it is a correction."""

    task_id: str
    round: int
    agent: str
    model: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The run as it stands at `elapsed_s` seconds of this session.

    `finished`, `failed` and `written` count conversations of all sessions, `resumed_with` those that were through when
    this one began. `turns`, `turns_ended` and `tokens` count this session's. `turns_ended` is the part of `turns` that
    belongs to conversations that are through; it makes the time left a good estimate long before the first batch of
    conversations has ended. `pending_rows` are of turns that are blocked by others or back off before a retry.
    `tokens` are without those of `silent_models`, which do not count them.
    """

    experiment_name: str
    profile: str
    elapsed_s: float
    planned: int
    finished: int
    failed: int
    written: int
    resumed_with: int = 0
    open: int = 0
    models: tuple[ModelSlots, ...] = ()
    ready: int = 0
    blocked: int = 0
    backing_off: int = 0
    ready_rows: tuple[TurnRow, ...] = ()
    pending_rows: tuple[TurnRow, ...] = ()
    turns: int = 0
    turns_ended: int | None = None
    tokens: TokenCount = field(default_factory=TokenCount)
    silent_models: tuple[str, ...] = ()

    @property
    def ended(self) -> int:
        """Conversations that are through, whatever became of them."""
        return self.finished + self.failed


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusFrame:
    """A reading with its rates; `tokens_per_s` counts generated tokens. `None` where nothing can be said yet."""

    reading: Reading
    turns_per_s: float | None = None
    tokens_per_s: float | None = None
    conversations_per_s: float | None = None
    eta_s: float | None = None
