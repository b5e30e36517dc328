"""Information lag: seats queue for speaking slots, on a clock that belongs to the conversation.

A discrete-event simulation. A seat at the front of the queue takes a free slot and its turn starts: it sees what has
been said by then. Its turn runs to completion, what it said becomes visible, and the seat goes to the back of the
queue if it has turns left. So those who wait, and those who are slow, answer to an older state of the talk.

How long a turn took is known when its reply is there. Nothing completes before that is known of every active turn:
only then is it certain which of them is the first, and the real order of arrival leaves no trace. Turns that end at
the same moment complete in seat order before the next ones start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From when to when a turn ran, in milliseconds since the discussion began."""

    started_ms: int
    ended_ms: int


@dataclass(slots=True, kw_only=True)
class ActiveTurn:
    """A turn that holds a slot. `number` counts the turns of the game; `ended_ms` is None until it is known."""

    seat: int
    number: int
    started_ms: int
    ended_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A turn that is over, in its place among the others."""

    seat: int
    number: int
    span: Span


@dataclass(slots=True)
class SpeakingQueue:
    """The slots and the queue of one discussion. `turns_left` counts what each seat has to start yet."""

    slots: int
    turns_left: dict[int, int]
    next_number: int
    now_ms: int = 0
    waiting: list[int] = field(default_factory=list)
    active: list[ActiveTurn] = field(default_factory=list)

    @classmethod
    def begin(
        cls, order: Sequence[int], turns: Mapping[int, int], *, slots: int, first_number: int = 0
    ) -> SpeakingQueue:
        """Queue the seats in `order`, each for so many turns, and fill the slots from the front."""
        queue = cls(slots=slots, turns_left=dict(turns), next_number=first_number, waiting=list(order))
        queue._fill()
        return queue

    def unanswered(self) -> tuple[ActiveTurn, ...]:
        """The turns under way whose length is not known, in the order in which they started."""
        return tuple(turn for turn in self.active if turn.ended_ms is None)

    def answered(self, seat: int, took_ms: int) -> tuple[Completed, ...]:
        """The turn of `seat` took so long: whatever is certain to complete now, in order."""
        turn = next(turn for turn in self.unanswered() if turn.seat == seat)
        turn.ended_ms = turn.started_ms + took_ms
        completed: list[Completed] = []
        while self.active and not self.unanswered():
            completed += self._complete()
            self._fill()
        return tuple(completed)

    def _complete(self) -> list[Completed]:
        """Free the slots of the turns that end first; their seats queue again in seat order."""
        ends = {turn.seat: turn.ended_ms or 0 for turn in self.active}
        self.now_ms = min(ends.values())
        over = sorted((turn for turn in self.active if ends[turn.seat] == self.now_ms), key=lambda turn: turn.seat)
        self.active = [turn for turn in self.active if turn not in over]
        self.waiting += [turn.seat for turn in over if self.turns_left[turn.seat]]
        return [
            Completed(seat=turn.seat, number=turn.number, span=Span(started_ms=turn.started_ms, ended_ms=self.now_ms))
            for turn in over
        ]

    def _fill(self) -> None:
        while self.waiting and len(self.active) < self.slots:
            seat = self.waiting.pop(0)
            self.turns_left[seat] -= 1
            self.active.append(ActiveTurn(seat=seat, number=self.next_number, started_ms=self.now_ms))
            self.next_number += 1
