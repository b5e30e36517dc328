"""How far a run is: read by the status view at any moment, written by the shell alone."""

from __future__ import annotations

from mac_runner.clock import Clock
from mac_runner.scheduler.accounting import Accounting
from mac_runner.scheduler.live import LiveConversation
from mac_runner.scheduler.recorder import RunLog
from mac_runner.scheduler.snapshot import PoolSnapshot
from mac_runner.scheduler.state import RequestScheduler
from mac_runner.types import TokenCount


class Progress:
    """Totals of a run, and its pools.

    `planned`, `finished` and `failed` count conversations of all sessions, `resumed_with` those that were through
    when this one began; `turns`, `turns_ended` (those of conversations that are through) and `tokens` count what
    this session generated. Reading costs nothing that grows with the run.
    """

    def __init__(self, *, planned: int, finished: int = 0, failed: int = 0) -> None:
        self.planned = planned
        self.finished = finished
        self.failed = failed
        self.resumed_with = finished + failed
        self.turns = 0
        self.turns_ended = 0
        self._scheduler = RequestScheduler()
        self._accounting: Accounting | None = None
        self._log: RunLog | None = None
        self._clock: Clock | None = None
        self._live: dict[int, LiveConversation] = {}
        self._started_at_s = 0.0
        self._ended_at_s: float | None = None
        self._played_before_s = 0.0
        self._tokens_before = TokenCount()

    def attach(
        self,
        scheduler: RequestScheduler,
        accounting: Accounting,
        log: RunLog,
        clock: Clock,
        live: dict[int, LiveConversation],
    ) -> None:
        """A shell begins: show these from now on. What one before it generated and played still counts."""
        self._tokens_before, self._played_before_s = self.tokens, self.elapsed_s
        self._started_at_s, self._ended_at_s = clock.monotonic_s(), None
        self._scheduler, self._accounting, self._log = scheduler, accounting, log
        self._clock, self._live = clock, live

    def ended(self, *, is_failed: bool, turns: int) -> None:
        """One more conversation is through, with so many turns answered in this session."""
        self.turns_ended += turns
        if is_failed:
            self.failed += 1
        else:
            self.finished += 1

    def stop(self, now_s: float) -> None:
        """The shell is through: its time and its slots stand still, while engines close and others start."""
        self._ended_at_s = now_s

    @property
    def elapsed_s(self) -> float:
        """Seconds that were played: engines were up, and not all was done yet."""
        return self._played_before_s + self._now_s() - self._started_at_s

    @property
    def open(self) -> int:
        """Conversations open now."""
        return self._scheduler.open_conversations

    @property
    def written(self) -> int:
        """Conversations safe on disk, of all sessions."""
        return self.resumed_with if self._log is None else self._log.written

    @property
    def tokens(self) -> TokenCount:
        """Tokens of this session's replies."""
        return self._tokens_before if self._accounting is None else self._tokens_before + self._accounting.tokens

    @property
    def silent_models(self) -> tuple[str, ...]:
        """The models in use that do not count their tokens."""
        return () if self._accounting is None else self._accounting.silent_models

    def utilisation(self, model: str) -> float | None:
        """The part of the model's slot time in use since the start."""
        return None if self._accounting is None else self._accounting.utilisation(model, self._now_s())

    def snapshot(self, rows: int) -> PoolSnapshot:
        """The pools now, with the first `rows` ready and pending turns."""
        return self._scheduler.snapshot(rows)

    def task_id(self, conversation: int) -> str:
        """The task of an open conversation of a snapshot."""
        live = self._live.get(conversation)
        return f"#{conversation}" if live is None else live.task.task_id

    def _now_s(self) -> float:
        """The clock of the shell, which stands still when it is through."""
        if self._ended_at_s is not None:
            return self._ended_at_s
        return 0.0 if self._clock is None else self._clock.monotonic_s()
