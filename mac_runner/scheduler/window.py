"""How many requests an engine is handed that turns some of them away. Pure.

A service tells how much it takes by turning away what is too much (429, or 503 with `Retry-After`). What it has at that
moment is what it takes, so this is all it is handed from then on: an answer lets the next request depart. Whether it
takes more by now is tried every few answers: first with one request more, then with two, with four and so on, until it
turns them away. So TCP closes its window at a loss and opens it as answers come (RFC 5681), but TCP halves it: what a
service has in hand is known here, and need not be guessed.

Not all that is turned away was too much: one of several servers is full, an overload lasts a moment, a lock is held.
So it takes several refusals that no answers make up for to close the window, and a few answers, whatever its size, to
open it. If each refusal closed it, a service that turns away three requests in ten at random would end up with one at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass

from mac_runner.limits import ANSWERS_TO_GROW, REFUSALS_TO_SHRINK, REST_S, RETRY_AFTER_S_MAX


@dataclass(slots=True)
class Window:
    """One engine's; `size` is in requests, None for an engine that takes whatever it is handed.

    `refusals` are those that no answer has made up for, as far as they are counted; `answers` are those since the size
    last changed, `step` is what it grows by next; `rests` are those since the last answer.
    """

    size: int | None = None
    refusals: int = 0
    answers: int = 0
    step: int = 1
    rests: int = 0

    def within(self, limit: int) -> int:
        """How many requests may be in flight of an engine that is handed `limit` at most."""
        return limit if self.size is None else min(self.size, limit)

    def turned_away(self, in_flight: int) -> None:
        """A request was turned away, and `in_flight` others were not."""
        self.refusals = min(self.refusals + 1, REFUSALS_TO_SHRINK) if in_flight else REFUSALS_TO_SHRINK
        if self.refusals == REFUSALS_TO_SHRINK:
            self.size, self.answers, self.step = max(1, in_flight), 0, 1

    def rest_s(self, delay_s: float | None) -> float:
        """How long an engine is left alone, in seconds, that turned a request away and has no other; the request itself
        is sent again in `delay_s`, None for never.

        Shortly at first, and twice as long each time that comes to nothing: what a service asks of one request is often
        more than others would have to wait.
        """
        rest_s = min(REST_S * 2.0 ** min(self.rests, 60), RETRY_AFTER_S_MAX)
        self.rests += 1
        return rest_s if delay_s is None else min(rest_s, delay_s)

    def answered(self, in_flight: int, limit: int) -> None:
        """A request was answered while `in_flight`, itself included, were there. A window not in use does not grow."""
        self.rests, self.refusals = 0, max(0, self.refusals - 1)
        if self.size is None or in_flight < self.size:
            return
        self.answers += 1
        if self.answers < min(self.size, ANSWERS_TO_GROW):
            return
        self.size, self.answers, self.step = self.size + self.step, 0, 2 * self.step
        if self.size >= limit:
            self.size = None
