"""The metrics of a run: what the engines did with their slots, and how far the run is.

`busy_slot_s` is the integral of requests in flight over time, `available_slot_s` that of the slots, `waiting_turn_s`
that of the turns that wait for a slot. They are updated whenever a number changes, so they are exact and cheap. The
caller passes the time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from mac_runner.bottleneck import ModelUsage, Usage
from mac_runner.clock import Clock, thread_cpu_s
from mac_runner.failures import FirstFailures
from mac_runner.scheduler.conversation import LiveConversation
from mac_runner.scheduler.pools import PoolSnapshot
from mac_runner.scheduler.state import RequestScheduler, RunLog
from mac_runner.store import merge_accounting
from mac_runner.types import JsonObject, ReceiptKind, TokenCount


@dataclass(slots=True, eq=False)
class ModelAccount:
    """One model's use of its slots."""

    capacity: int
    """The most requests that it served at once."""
    slots: int
    """The capacity in effect, as far as the run's concurrency lets it be used."""
    in_flight: int = 0
    waiting: int = 0
    """Turns that wait for a slot."""
    busy_slot_s: float = 0.0
    available_slot_s: float = 0.0
    waiting_turn_s: float = 0.0
    requests: int = 0
    faults: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    updated_at_s: float = 0.0

    def bring_up_to(self, now_s: float) -> None:
        """Integrate the time since the last change."""
        passed_s = now_s - self.updated_at_s
        # An engine may get more requests than it has slots, to keep some waiting.
        self.busy_slot_s += min(self.in_flight, self.slots) * passed_s
        self.available_slot_s += self.slots * passed_s
        self.waiting_turn_s += self.waiting * passed_s
        self.updated_at_s = now_s

    def change(self, by: int, now_s: float) -> None:
        """`by` more requests are in flight from now on."""
        self.bring_up_to(now_s)
        self.in_flight += by


class Accounting:
    """The accounts of all models since `started_at_s`.

    `cpu_s` reads the CPU seconds of the thread that plays; it is called on that thread.
    """

    def __init__(
        self, *, started_at_s: float, concurrency: int | None, cpu_s: Callable[[], float] = thread_cpu_s
    ) -> None:
        self._started_at_s = started_at_s
        self._cpu_s, self._cpu_before_s = cpu_s, cpu_s()
        self._disk_turn_s = 0.0
        self.concurrency = concurrency
        self._models: dict[str, ModelAccount] = {}

    def open(self, model: str, capacity: int) -> None:
        """Open the account of a model."""
        slots = self._usable(capacity)
        self._models[model] = ModelAccount(capacity=capacity, slots=slots, updated_at_s=self._started_at_s)

    def resize(self, model: str, capacity: int) -> None:
        """Take in that a model serves `capacity` requests at once from now on; `set_pool` has what follows."""
        account = self._models[model]
        account.capacity = max(account.capacity, capacity)

    def set_pool(self, model: str, *, capacity: int, waiting: int, now_s: float) -> None:
        """Set the capacity in effect from now on, and the turns that wait for it."""
        account = self._models[model]
        slots = self._usable(capacity)
        if slots != account.slots or waiting != account.waiting:
            account.bring_up_to(now_s)
            account.slots, account.waiting = slots, waiting

    def waited_for_disk(self, turn_s: float) -> None:
        """Count turn-seconds that a request waited for the disk."""
        self._disk_turn_s += turn_s

    def departed(self, model: str, now_s: float) -> None:
        """Count a request that took a slot."""
        self._models[model].change(1, now_s)

    def landed(self, model: str, now_s: float, tokens: TokenCount | None) -> None:
        """Count a request that freed its slot, with an answer of so many tokens or (None) without one."""
        account = self._models[model]
        account.change(-1, now_s)
        if tokens is None:
            account.faults += 1
            return
        account.requests += 1
        account.prompt_tokens += tokens.prompt
        account.cached_tokens += tokens.cached
        account.completion_tokens += tokens.completion

    @property
    def tokens(self) -> TokenCount:
        """Tokens of all answered requests."""
        accounts = self._models.values()
        return TokenCount(
            prompt=sum(account.prompt_tokens for account in accounts),
            cached=sum(account.cached_tokens for account in accounts),
            completion=sum(account.completion_tokens for account in accounts),
        )

    @property
    def requests(self) -> int:
        """Answered requests."""
        return sum(account.requests for account in self._models.values())

    @property
    def silent_models(self) -> tuple[str, ...]:
        """Models that answered and never reported how many tokens they used."""
        return tuple(name for name, account in self._models.items() if account.requests and not account.prompt_tokens)

    def utilisation(self, model: str, now_s: float) -> float | None:
        """The part of the model's slot time in use since the start; None at the very start."""
        account = self._models[model]
        account.bring_up_to(now_s)
        return account.busy_slot_s / account.available_slot_s if account.available_slot_s > 0 else None

    def typical_prompt_tokens(self) -> int:
        """The mean prompt so far, 0 before the first reply."""
        return self.tokens.prompt // max(1, self.requests)

    def _usable(self, capacity: int) -> int:
        return capacity if self.concurrency is None else min(capacity, self.concurrency)

    def usage(self, now_s: float) -> Usage:
        """What was used so far."""
        for account in self._models.values():
            account.bring_up_to(now_s)
        return Usage(
            played_s=now_s - self._started_at_s,
            cpu_s=self._cpu_s() - self._cpu_before_s,
            disk_turn_s=self._disk_turn_s,
            requests=self.requests,
            models={
                name: ModelUsage(
                    busy_slot_s=account.busy_slot_s,
                    available_slot_s=account.available_slot_s,
                    waiting_turn_s=account.waiting_turn_s,
                )
                for name, account in self._models.items()
            },
        )

    def as_json(self, now_s: float) -> JsonObject:
        """The accounts now: amounts that add up over the sessions of a run, except `capacity`.

        Per model, `slot_utilisation = busy_slot_s / available_slot_s`. The mean of the slots in effect is
        `available_slot_s / played_s`.
        """
        played_s = now_s - self._started_at_s
        models: JsonObject = {}
        for name, account in self._models.items():
            account.bring_up_to(now_s)
            models[name] = {
                "capacity": account.capacity,
                "played_s": round(played_s, 6),
                "busy_slot_s": round(account.busy_slot_s, 6),
                "available_slot_s": round(account.available_slot_s, 6),
                "waiting_turn_s": round(account.waiting_turn_s, 6),
                "requests": account.requests,
                "faults": account.faults,
                "tokens": {
                    "prompt": account.prompt_tokens,
                    "cached": account.cached_tokens,
                    "completion": account.completion_tokens,
                },
            }
        return {
            "played_s": round(played_s, 6),
            "cpu_s": round(self._cpu_s() - self._cpu_before_s, 6),
            "disk_turn_s": round(self._disk_turn_s, 6),
            "models": models,
        }


class Progress:
    """Totals of a run, and its pools. The runner writes it; the status view reads it at any moment.

    `planned`, `finished` and `failed` count conversations of all sessions, `resumed_with` those that had ended when
    this session began. `turns`, `turns_ended` (turns of ended conversations), `corrections`, `defaults` and `tokens`
    count this session's work. `on_outcome` is called with each outcome. The cost of reading does not grow with the run.
    """

    def __init__(
        self,
        *,
        planned: int,
        finished: int = 0,
        failed: int = 0,
        on_outcome: Callable[[JsonObject], None] = lambda _outcome: None,
    ) -> None:
        self.planned = planned
        self.finished = finished
        self.failed = failed
        self.resumed_with = finished + failed
        self.turns = 0
        self.turns_ended = 0
        self.corrections = 0
        self.defaults = 0
        self.first = FirstFailures()
        """Those that began first in this phase."""
        self.on_answer: Callable[[], object] = lambda: None
        """Called with each reply, once it is counted."""
        self._taken: defaultdict[str, Counter[ReceiptKind]] = defaultdict(Counter)
        self._on_outcome = on_outcome
        self._scheduler = RequestScheduler()
        self._accounting: Accounting | None = None
        self._log: RunLog | None = None
        self._clock: Clock | None = None
        self._live: dict[int, LiveConversation] = {}
        self._silent_since_s: Callable[[str], float | None] = lambda _engine: None
        self._started_at_s = 0.0
        self._ended_at_s: float | None = None
        self._played_before_s = 0.0
        self._tokens_before = TokenCount()
        self._used_before: JsonObject = {}

    def attach(
        self,
        scheduler: RequestScheduler,
        accounting: Accounting,
        log: RunLog,
        clock: Clock,
        live: dict[int, LiveConversation],
        silent_since_s: Callable[[str], float | None] = lambda _engine: None,
    ) -> None:
        """Show another phase of the run from now on; what earlier phases generated and played still counts."""
        self._tokens_before, self._played_before_s, self._used_before = self.tokens, self.elapsed_s, self.used()
        self._started_at_s, self._ended_at_s = clock.monotonic_s(), None
        self._scheduler, self._accounting, self._log = scheduler, accounting, log
        self._clock, self._live, self._silent_since_s = clock, live, silent_since_s
        self.first = FirstFailures()

    def join(self, *, planned: int, finished: int, failed: int) -> None:
        """Take in a part of the run that came to this process: what is planned there, and what has ended already."""
        self.planned += planned
        self.finished += finished
        self.failed += failed
        self.resumed_with += finished + failed

    def answered(self) -> None:
        """Count a reply, which the accounts have."""
        self.turns += 1
        self.on_answer()

    def applied(self, kind: ReceiptKind, definition: str) -> None:
        """Count what the conversation made of a reply."""
        self._taken[definition][kind] += 1
        if kind is ReceiptKind.CORRECTION:
            self.corrections += 1
        elif kind is ReceiptKind.DEFAULT:
            self.defaults += 1

    def ended(self, live: LiveConversation, outcome: JsonObject | None) -> None:
        """Count a conversation that ended, with its turns answered in this session."""
        self.turns_ended += live.answered
        self.first.add(live.number, live.failure, live.task.task_id)
        if outcome is not None:
            self._on_outcome(outcome)
        if live.failure is not None:
            self.failed += 1
        else:
            self.finished += 1

    @property
    def is_vain(self) -> bool:
        """Whether no conversation has finished, the first ones failed for one reason, and others are left."""
        return not self.finished and self.first.reason is not None and self.failed < self.planned

    def stop(self, now_s: float) -> None:
        """Stop the clock of this phase, while engines close and others start."""
        self._ended_at_s = now_s

    def default_shares(self) -> dict[str, float]:
        """By agent definition, the part of its turns that ended with the default act."""
        sums = {name: (kinds[ReceiptKind.DEFAULT], kinds[ReceiptKind.ACT]) for name, kinds in self._taken.items()}
        return {name: defaults / (defaults + acts) for name, (defaults, acts) in sums.items() if defaults + acts}

    @property
    def elapsed_s(self) -> float:
        """Seconds of play: engines were up and conversations were left."""
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
        """Models in use that do not report tokens."""
        return () if self._accounting is None else self._accounting.silent_models

    @property
    def is_all_open(self) -> bool:
        """Whether no conversation is left to be opened."""
        return self.finished + self.failed + self.open >= self.planned

    @property
    def concurrency(self) -> int | None:
        """The bound on the requests of all models together."""
        return None if self._accounting is None else self._accounting.concurrency

    @property
    def usage(self) -> Usage | None:
        """What this phase of the run used so far; to be read on the thread that plays."""
        return None if self._accounting is None else self._accounting.usage(self._now_s())

    def accounts(self) -> JsonObject:
        """The accounts of this phase; to be read on the thread that plays."""
        return {} if self._accounting is None else self._accounting.as_json(self._now_s())

    def used(self) -> JsonObject:
        """The accounts of all phases; to be read on the thread that plays."""
        return merge_accounting(self._used_before, self.accounts()) if self._used_before else self.accounts()

    def utilisation(self, model: str) -> float | None:
        """The part of the model's slot time in use since the start."""
        return None if self._accounting is None else self._accounting.utilisation(model, self._now_s())

    def unanswered_s(self, model: str) -> float | None:
        """How long an engine under suspicion has answered no request; None for one that works."""
        since_s = None if self._ended_at_s is not None else self._silent_since_s(model)
        return None if since_s is None else self._now_s() - since_s

    def snapshot(self, rows: int) -> PoolSnapshot:
        """The pools now, with the first `rows` ready and pending turns."""
        return self._scheduler.snapshot(rows)

    def task_id(self, conversation: int) -> str:
        """The task of an open conversation of a snapshot."""
        live = self._live.get(conversation)
        return f"#{conversation}" if live is None else live.task.task_id

    def _now_s(self) -> float:
        """The clock of this phase."""
        if self._ended_at_s is not None:
            return self._ended_at_s
        return 0.0 if self._clock is None else self._clock.monotonic_s()
