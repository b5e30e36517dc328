"""A discussion as a table: who said what in which round (pure).

Every agent speaks once per round. Whom it waits for inside the round (`speak_after_within_round`) is also whom it
hears in it; beyond that it hears the earlier rounds. What stands in the table does not depend on the order in which
it was filled, and it is always read in the same order: by round, then by place.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mac_runner.environments.markup import defuse
from mac_runner.limits import SPEECH_CHARS_MAX


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


@dataclass(slots=True)
class Discussion:
    """The table. `attempts` counts the corrections asked of an agent that has not spoken in the present round yet."""

    topic: str
    rounds: int
    participants: tuple[Participant, ...]
    said: dict[tuple[int, int], Statement] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)

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
        self.attempts.pop(participant.place, None)
        self.said[now, participant.place] = Statement(round=now, agent=participant.agent, text=text)


def spoken(reply: str) -> str:
    """A reply as a statement: the words as they are, up to a bound; "" when nothing of them would be seen."""
    said = reply.strip()[:SPEECH_CHARS_MAX].rstrip()
    return said if defuse(said) else ""
