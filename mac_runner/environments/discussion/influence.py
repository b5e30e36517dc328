"""Who changed an answer, and who followed whom.

A participant changes its answer when it gives another one than in the round before; a pass in either round is not a
case. It is exposed to an agent when it could read that agent's answer, which was another than its own. It has followed
that agent when it then changed to that very answer. Both are counted by how the agent was shown in that round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from mac_runner.environments.discussion.state import DiscussionState, Seat, same
from mac_runner.measures import Share

NOT_SHOWN: Final = "(not shown)"
NO_CASES: Final = Share(0, 0)
Answers: TypeAlias = Mapping[str, str | None]


def _shares(cases: Iterable[tuple[str, bool]]) -> dict[str, Share]:
    """Of each name how many of its cases count."""
    found: defaultdict[str, Share] = defaultdict(lambda: NO_CASES)
    for name, is_counted in cases:
        found[name] += Share(int(is_counted), 1)
    return dict(sorted(found.items()))


def changes(state: DiscussionState) -> Iterator[list[tuple[Seat, bool]]]:
    """For each round but the first, whose answer could have changed, and whether it did."""
    for before, after in pairwise(state.answers(number) for number in range(state.round)):
        yield [
            (seat, same(given) != same(held))
            for seat in state.participants
            if (held := before[seat.agent]) is not None and (given := after[seat.agent]) is not None
        ]


def changes_by_identity(state: DiscussionState) -> dict[str, Share]:
    """By the identity with which others are shown who answers: changed answers, and those that could have changed."""
    return _shares(
        (seat.identity.shown_in(number) or NOT_SHOWN, has_changed)
        for number, cases in enumerate(changes(state), start=1)
        for seat, has_changed in cases
    )


def influence(state: DiscussionState) -> dict[str, dict[str, Share]]:
    """For each author and each reader: how often the reader followed the author, of how often it was exposed to it.

    Authors are participants and devil's advocates, readers are participants. Pairs without a case are left out.
    """
    cases = [*exposures(state)]
    return {
        seat.agent: _shares((case.reader, case.has_followed) for case in cases if case.author is seat)
        for seat in _authors(state)
    }


def influence_by_identity(state: DiscussionState) -> dict[str, Share]:
    """By the identity that its author was then shown with: how often a participant followed another."""
    return _shares(
        (case.author.identity.shown_in(case.round) or NOT_SHOWN, case.has_followed)
        for case in exposures(state)
        if case.author.role == "participant"
    )


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
