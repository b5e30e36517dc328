"""Who changed its answer, and after whom (pure).

A participant changes its answer when it gives another one than in the round before; who passed in either round is no
case. It is exposed to an agent when it could read that agent's answer, which was another than its own; it has followed
that agent when it then changed to that very answer. Both are counted by how the agent was shown to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from mac_runner.environments.discussion.stopping import same
from mac_runner.environments.discussion.table import Seat, Table

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


def changes_by_round(table: Table) -> list[Tally]:
    """For each round but the first: changed answers, and answers that could have changed."""
    tallies = []
    for number in range(1, table.round):
        tally = Tally()
        before, after = table.answers(number - 1), table.answers(number)
        for agent, answer in after.items():
            if answer is not None and before[agent] is not None:
                tally.add(same(answer) != same(before[agent]))
        tallies.append(tally)
    return tallies


def changes_by_identity(table: Table) -> dict[str, Tally]:
    """By the identity with which others are shown who answers: changed answers, and those that could have changed."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    for number in range(1, table.round):
        before, after = table.answers(number - 1), table.answers(number)
        for seat in table.participants:
            if (held := before[seat.agent]) is not None and (given := after[seat.agent]) is not None:
                tallies[seat.identity.shown or NOT_SHOWN].add(same(given) != same(held))
    return dict(sorted(tallies.items()))


def influence_by_identity(table: Table) -> dict[str, Tally]:
    """By the identity shown: how often a participant followed an agent whose other answer it had read."""
    tallies: defaultdict[str, Tally] = defaultdict(Tally)
    answers = [table.answers(number) for number in range(table.round)]
    for earlier, now in pairwise(answers):
        for seat in table.participants:
            before, after = earlier[seat.agent], now[seat.agent]
            if before is None or after is None:
                continue
            for other in table.participants:
                held = _read_by(seat, other, earlier, now)
                if other is not seat and held is not None and same(held) != same(before):
                    tallies[other.identity.shown or NOT_SHOWN].add(same(after) == same(held))
    return dict(sorted(tallies.items()))


def _read_by(seat: Seat, other: Seat, earlier: Answers, now: Answers) -> str | None:
    """The latest answer of `other` that `seat` could read when it spoke, after a round with the `earlier` answers."""
    if other.agent in seat.waits_for:
        return now[other.agent]
    return earlier[other.agent] if other.agent in seat.reads else None
