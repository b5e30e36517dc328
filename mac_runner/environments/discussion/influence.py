"""Who changed an answer, and who followed whom.

A participant changes its answer when it gives another one than in the round before; a pass in either round is not a
case. It is exposed to an agent when it could read that agent's answer, which was another than its own. It has followed
that agent when it then changed to that very answer. Both are counted by how the agent was shown in that round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from mac_runner.environments.discussion.state import DiscussionState, Seat, same

NOT_SHOWN = "(not shown)"

Answers: TypeAlias = Mapping[str, str | None]


@dataclass(slots=True)
class Tally:
    """How many of how many cases."""

    count: int = 0
    cases: int = 0

    def add(self, is_counted: bool) -> None:
        """One more case."""
        self.cases += 1
        self.count += is_counted

    def include(self, other: Tally) -> None:
        """The cases of another tally."""
        self.count += other.count
        self.cases += other.cases


def changes_by_round(state: DiscussionState) -> list[Tally]:
    """For each round but the first: changed answers, and answers that could have changed."""
    tallies = []
    for number in range(1, state.round):
        tally = Tally()
        before, after = state.answers(number - 1), state.answers(number)
        for agent, answer in after.items():
            if answer is not None and before[agent] is not None:
                tally.add(same(answer) != same(before[agent]))
        tallies.append(tally)
    return tallies


def changes_by_identity(state: DiscussionState) -> dict[str, Tally]:
    """By the identity with which others are shown who answers: changed answers, and those that could have changed."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for number in range(1, state.round):
        before, after = state.answers(number - 1), state.answers(number)
        for seat in state.participants:
            if (held := before[seat.agent]) is not None and (given := after[seat.agent]) is not None:
                tallies[seat.identity.shown_in(number) or NOT_SHOWN].add(same(given) != same(held))
    return dict(sorted(tallies.items()))


def influence(state: DiscussionState) -> dict[str, dict[str, Tally]]:
    """For each author and each reader: how often the reader followed the author, of how often it was exposed to it.

    Authors are participants and devil's advocates, readers are participants. Pairs without a case are left out.
    """
    tallies: dict[str, defaultdict[str, Tally]] = {seat.agent: defaultdict(Tally) for seat in _authors(state)}
    for case in exposures(state):
        tallies[case.author.agent][case.reader].add(case.has_followed)
    return {author: dict(sorted(readers.items())) for author, readers in tallies.items()}


def influence_by_identity(state: DiscussionState) -> dict[str, Tally]:
    """By the identity that its author was then shown with: how often a participant followed another."""
    by_identity: defaultdict[str, Tally] = defaultdict(Tally)
    for case in exposures(state):
        if case.author.role == "participant":
            by_identity[case.author.identity.shown_in(case.round) or NOT_SHOWN].add(case.has_followed)
    return dict(sorted(by_identity.items()))


class Exposure(NamedTuple):
    """A participant that had read another answer than its own, and whether it then took it over."""

    author: Seat
    reader: str
    round: int
    is_same_round: bool
    """Whether it read the author's answer of its own round, and not that of the round before."""
    has_followed: bool


def _authors(state: DiscussionState) -> list[Seat]:
    return [seat for seat in state.seats if seat.role in ("participant", "devils_advocate")]


def exposures(state: DiscussionState) -> Iterator[Exposure]:
    """Every case in which a participant could follow another agent."""
    given = [state.given(number) for number in range(state.round)]
    for number, (earlier, now) in enumerate(pairwise(given), start=1):
        for seat in state.participants:
            before, after = earlier[seat.agent], now[seat.agent]
            if before is None or after is None:
                continue
            for author in _authors(state):
                held = None if author.agent == seat.agent else _read_by(seat, author.agent, earlier, now)
                if held is not None and same(held) != same(before):
                    has_waited = author.agent in seat.waits_for
                    yield Exposure(author, seat.agent, number, has_waited, same(after) == same(held))


def _read_by(seat: Seat, author: str, earlier: Answers, now: Answers) -> str | None:
    """The latest answer of `author` that `seat` could read when it spoke, after a round with the `earlier` answers."""
    if author in seat.waits_for:
        return now[author]
    return earlier[author] if author in seat.reads else None
