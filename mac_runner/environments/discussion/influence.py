"""Who changed an answer, and who followed whom.

A participant changes its answer when it gives another one than in the round before; a pass in either round is not a
case. It is exposed to an agent when it could read that agent's answer, which was another than its own. It has followed
that agent when it then changed to that very answer. Both are counted by how the agent was shown in that round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from mac_runner.environments.discussion.state import DiscussionState, Seat, same
from mac_runner.measures import Share

K = TypeVar("K", int, str)
NOT_SHOWN: Final = "(not shown)"
NO_CASES: Final = Share(0, 0)


class Change(NamedTuple):
    """A participant whose answer could have changed, and whether it did."""

    seat: Seat
    round: int
    has_changed: bool


class Exposure(NamedTuple):
    """A participant that had read another answer than its own, and whether it then took it over."""

    author: Seat
    reader: str
    round: int
    is_same_round: bool
    """Whether it read the author's answer of its own round, and not that of the round before."""
    has_followed: bool


def shares(cases: Iterable[tuple[K, bool]]) -> dict[K, Share]:
    """Of each name, in their order, how many of its cases count."""
    found: defaultdict[K, Share] = defaultdict(lambda: NO_CASES)
    for name, is_counted in cases:
        found[name] += Share(int(is_counted), 1)
    return dict(sorted(found.items()))


def shown(seat: Seat, round_number: int) -> str:
    """The identity with which others are shown an agent in a round."""
    return seat.identity.shown_in(round_number) or NOT_SHOWN


def changes(state: DiscussionState) -> Iterator[Change]:
    """Every case in which a participant could change its answer."""
    for number, (before, after) in enumerate(pairwise(map(state.given, range(state.round))), start=1):
        for seat in state.participants:
            if (held := before[seat.agent]) is not None and (given := after[seat.agent]) is not None:
                yield Change(seat, number, same(given) != same(held))


def influence(state: DiscussionState) -> dict[str, dict[str, Share]]:
    """For each author and each reader: how often the reader followed the author, of how often it was exposed to it.

    Authors are participants and devil's advocates, readers are participants. Those without a case are left out.
    """
    found: defaultdict[str, list[tuple[str, bool]]] = defaultdict(list)
    for case in exposures(state):
        found[case.author.agent].append((case.reader, case.has_followed))
    return {seat.agent: shares(found[seat.agent]) for seat in state.seats if seat.agent in found}


def exposures(state: DiscussionState) -> Iterator[Exposure]:
    """Every case in which a participant could follow another agent."""
    given = [state.given(number) for number in range(state.round)]
    for number, (earlier, now) in enumerate(pairwise(given), start=1):
        for seat in state.participants:
            before, after = earlier[seat.agent], now[seat.agent]
            if before is None or after is None:
                continue
            for author in state.seats:
                name, has_waited = author.agent, author.agent in seat.waits_for
                if name == seat.agent or author.role not in ("participant", "devils_advocate"):
                    continue
                # The latest answer of the author that it could read when it spoke.
                held = now[name] if has_waited else earlier[name] if name in seat.reads else None
                if held is not None and same(held) != same(before):
                    yield Exposure(author, seat.agent, number, has_waited, same(after) == same(held))
