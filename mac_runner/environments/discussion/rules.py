"""A discussion as a table: who said what in which round (pure).

Every agent speaks once per round. Whom it waits for inside the round (`speak_after_within_round`) is also whom it
hears in it; beyond that it hears the earlier rounds. What stands in the table does not depend on the order in which
it was filled, and it is always read in the same order: by round, then by place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mac_runner.environments.markup import after_thoughts, defuse, opens_thought
from mac_runner.limits import SPEECH_CHARS_MAX
from mac_runner.types import FinishReason, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    """One agent at the table. `hears` are those it waits for, and hears, in a round; its `place` is behind theirs."""

    agent: str
    role: str
    model: str
    place: int
    hears: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one agent said in one round, in its own words; `text` is None when it passed."""

    round: int
    agent: str
    text: str | None


@dataclass(frozen=True, slots=True)
class Statable:
    """The words of a reply that can be put down."""

    text: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a reply says nothing."""

    reason: str


@dataclass(slots=True)
class Discussion:
    """The table. `problems` are those of the replies in the present round of an agent that has not spoken in it yet."""

    topic: str
    rounds: int
    participants: tuple[Participant, ...]
    said: dict[tuple[int, int], Statement] = field(default_factory=dict)
    problems: dict[int, tuple[str, ...]] = field(default_factory=dict)

    @property
    def round(self) -> int:
        """The present round; `rounds` when all are over."""
        return len(self.said) // len(self.participants)

    def waiting(self) -> tuple[Participant, ...]:
        """Those who have not spoken in the present round."""
        now = self.round
        return tuple(p for p in self.participants if now < self.rounds and (now, p.place) not in self.said)

    def heard_by(self, participant: Participant) -> tuple[Statement, ...]:
        """What `participant` knows now: all earlier rounds, and of this one those it waits for."""
        now = self.round
        return tuple(
            self.said[place]
            for place in sorted(self.said)
            if place[0] < now or self.said[place].agent in participant.hears
        )

    def say(self, participant: Participant, text: str | None) -> None:
        """Put down what `participant` says in the present round; None: it passes."""
        now = self.round
        self.problems.pop(participant.place, None)
        self.said[now, participant.place] = Statement(round=now, agent=participant.agent, text=text)


def read(reply: Reply) -> Statable | Problem:
    """A reply as what is said aloud: what follows its thoughts, in its own words, up to a bound.

    Thoughts that were cut off are told apart from a reply in which nothing would be seen.
    """
    said = after_thoughts(reply.text)
    if opens_thought(said):
        is_cut = reply.finish_reason is FinishReason.LENGTH
        return Problem("it was cut off inside its thoughts; think less" if is_cut else "its thoughts were never closed")
    said = said[:SPEECH_CHARS_MAX].rstrip()
    return Statable(said) if defuse(said) else Problem("it was empty")
