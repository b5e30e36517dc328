"""What the answers and faults of one engine say about it. Pure.

Two questions: may another retry be sent, and is it the engine that fails, not its requests? Retries come out of a
budget that answers fill (retry budgets: Google SRE book, "Handling Overload"), so an engine in trouble is asked at the
pace at which it answers. An engine is under suspicion from its last answer on, when it could not be reached or when
several conversations had no luck with it; it is waited for, for ENGINE_SILENCE_S_MAX seconds. One that died while it
worked had been there: it is waited for from then on, but not over and over if it dies each time and answers nobody. So
had one that said it was busy, which may take its time: some services count by the minute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mac_runner.limits import (
    ANSWERS_PER_RETRY,
    ENGINE_BUSY_S_MAX,
    ENGINE_DEATHS_PER_TURN_MAX,
    ENGINE_SILENCE_S_MAX,
    ENGINE_SUSPECT_CONVERSATIONS_MIN,
    RETRIES_MIN,
    RETRIES_PER_SLOT,
)


@dataclass(slots=True)
class EngineHealth:
    """One engine. `retries_max` is the budget, of which `spent` (counted in answers) is used; `answers` are all.

    `deaths` are those since the last answer, `died_at_s` is when the last of them was noticed; `busy_at_s` is when it
    said last that it was busy.
    """

    retries_max: int
    spent: int = 0
    answers: int = 0
    silent_since_s: float | None = None
    unlucky: set[int] = field(default_factory=set)
    is_unreachable: bool = False
    busy_at_s: float = -math.inf
    deaths: int = 0
    died_at_s: float | None = None

    @classmethod
    def of(cls, capacity: int) -> EngineHealth:
        """An engine with `capacity` slots: its budget has room for a short outage that every one of them feels."""
        return cls(retries_max=max(RETRIES_MIN, RETRIES_PER_SLOT * capacity))

    def answered(self) -> None:
        """A request was answered."""
        self.answers += 1
        self.spent = max(0, self.spent - 1)
        self.silent_since_s = None
        self.unlucky.clear()
        self.is_unreachable = False
        self.deaths = 0

    def faulted(self, conversation: int, now_s: float, *, is_unreachable: bool = False, is_busy: bool = False) -> None:
        """A request of `conversation` was not answered."""
        if self.silent_since_s is None:
            self.silent_since_s = now_s
        if len(self.unlucky) < ENGINE_SUSPECT_CONVERSATIONS_MIN:
            self.unlucky.add(conversation)
        self.is_unreachable = self.is_unreachable or is_unreachable
        if is_busy:
            self.busy_at_s = now_s

    def died(self, sent_at_s: float, now_s: float) -> None:
        """It died over a request sent at `sent_at_s`, and maybe over others: they all tell of the same death."""
        if self.died_at_s is not None and sent_at_s <= self.died_at_s:
            return
        self.deaths += 1
        self.died_at_s = now_s
        if self.deaths <= ENGINE_DEATHS_PER_TURN_MAX:
            self.silent_since_s = now_s

    def spend_retry(self) -> bool:
        """Take one retry out of the budget; False when it is empty."""
        if self.spent + ANSWERS_PER_RETRY > self.retries_max * ANSWERS_PER_RETRY:
            return False
        self.spent += ANSWERS_PER_RETRY
        return True

    @property
    def is_suspect(self) -> bool:
        """Whether the faults since the last answer are the engine's, as far as can be told."""
        return self.is_unreachable or len(self.unlucky) >= ENGINE_SUSPECT_CONVERSATIONS_MIN

    def is_lost(self, now_s: float) -> bool:
        """Whether it has been waited for long enough."""
        silent_since_s = now_s if self.silent_since_s is None else self.silent_since_s
        lost_at_s = max(silent_since_s, min(self.busy_at_s, silent_since_s + ENGINE_BUSY_S_MAX)) + ENGINE_SILENCE_S_MAX
        return self.is_suspect and now_s >= lost_at_s
