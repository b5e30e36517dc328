"""Information lag: seats queue for speaking slots, on a clock that belongs to the conversation.

A discrete-event simulation. The seat at the front of the queue takes a free slot and starts its turn: it sees what has
been said by then. When the turn is over its words become visible, and the seat goes to the back of the queue if it has
turns left. So slow and waiting seats answer to an older state of the talk.

The length of a turn is known with its reply. No turn completes before the lengths of all active turns are known: only
then is it certain which ends first, and the real order of arrival leaves no trace. Turns that end at the same moment
complete in seat order before the next ones start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The start and the end of a turn, in milliseconds since the discussion began."""

    started_ms: int
    ended_ms: int


@dataclass(slots=True, kw_only=True)
class ActiveTurn:
    """A turn that holds a slot."""

    seat: int
    number: int
    """Counts the turns of the game."""
    started_ms: int
    ended_ms: int | None = None
    """None until it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A turn that is over."""

    seat: int
    number: int
    span: Span


@dataclass(slots=True)
class SpeakingQueue:
    """The slots and the queue of one discussion."""

    slots: int
    turns_left: dict[int, int]
    """The turns that each seat has not started."""
    next_number: int
    now_ms: int = 0
    waiting: list[int] = field(default_factory=list)
    active: list[ActiveTurn] = field(default_factory=list)

    @classmethod
    def begin(
        cls, order: Sequence[int], turns: Mapping[int, int], *, slots: int, first_number: int = 0
    ) -> SpeakingQueue:
        """Queue the seats in `order` for their `turns`, and fill the slots from the front."""
        queue = cls(slots=slots, turns_left=dict(turns), next_number=first_number, waiting=list(order))
        queue._fill()
        return queue

    def unanswered(self) -> tuple[ActiveTurn, ...]:
        """Active turns of unknown length, in the order in which they started."""
        return tuple(turn for turn in self.active if turn.ended_ms is None)

    def answered(self, seat: int, took_ms: int) -> tuple[Completed, ...]:
        """The turns that are certain to complete, in order, once that of `seat` took `took_ms`."""
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
