"""A discussion as a table: who said what in which round (pure).

Every seat speaks once a round. What stands in the table does not depend on the order in which it was filled, and it is
always read in the same order: by round, then by place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from mac_runner.environments.discussion.answers import Problem
from mac_runner.environments.discussion.identity import Identity
from mac_runner.environments.discussion.questions import Question
from mac_runner.environments.discussion.settings import DiscussionRole


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One agent at the table.

    In a round it waits for, and reads, those in `waits_for`; its `place` is behind theirs. Of earlier rounds it reads
    those in `reads`. It may write to its `channels`.
    """

    agent: str
    role: DiscussionRole
    model: str
    place: int
    identity: Identity
    waits_for: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    channels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a reply says, in the words of its agent.

    `answer` is the id of a choice, or words where the question is open; `how` tells how the answer was recognised.
    `asks` is a moderator's question, `ends` a judge's decision to end the discussion, `asides` go to private channels.
    """

    text: str
    answer: str | None = None
    how: str = ""
    asks: str = ""
    ends: bool = False
    asides: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one seat said in one round; `said` is None when it passed."""

    round: int
    agent: str
    place: int
    role: DiscussionRole
    said: Said | None

    @property
    def answer(self) -> str | None:
        """The answer given with it, if one was."""
        return None if self.said is None else self.said.answer

    def without_asides(self) -> Statement:
        """The statement as those read it who are in none of its channels."""
        if self.said is None or not self.said.asides:
            return self
        return replace(self, said=replace(self.said, asides=()))


@dataclass(slots=True)
class Table:
    """All that was said. `round` is the present one, and so how many are complete.

    `problems` are those of replies in the present round, by place, of seats still to speak.
    """

    question: Question
    seats: tuple[Seat, ...]
    participants: tuple[Seat, ...] = field(init=False)
    """The seats whose answers count."""
    statements: dict[tuple[int, int], Statement] = field(default_factory=dict)
    problems: dict[int, tuple[Problem, ...]] = field(default_factory=dict)
    round: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.participants = tuple(seat for seat in self.seats if seat.role == "participant")

    def waiting(self) -> tuple[Seat, ...]:
        """Those who have not spoken in the present round."""
        now = self.round
        return tuple(seat for seat in self.seats if (now, seat.place) not in self.statements)

    def in_order(self) -> Iterator[Statement]:
        """Every statement by round and place."""
        for key in sorted(self.statements):
            yield self.statements[key]

    def answers(self, round_number: int) -> dict[str, str | None]:
        """The participants' answers of a complete round; None for who passed."""
        return {seat.agent: self.statements[round_number, seat.place].answer for seat in self.participants}

    def put(self, seat: Seat, said: Said | None) -> None:
        """Put down what `seat` says in the present round; None: it passes."""
        now = self.round
        self.problems.pop(seat.place, None)
        statement = Statement(round=now, agent=seat.agent, place=seat.place, role=seat.role, said=said)
        self.statements[now, seat.place] = statement
        self.round = len(self.statements) // len(self.seats)
