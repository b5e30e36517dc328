"""Who reads whom (pure): the routing of a discussion, and what one seat knows of its table.

Of earlier rounds a seat reads its own words and those of the agents that the topology and `visible_to` let it read, as
far back as the history goes. Of the present round it reads those it waits for, and only those. What is written to a
private channel is read by its members alone, whatever else they may read. The order is the table's: by round and
place, never the order in which replies came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mac_runner.environments.discussion.settings import RoutingStrategy
from mac_runner.environments.discussion.table import Seat, Statement, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A line in a private channel."""

    round: int
    agent: str
    channel: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a seat may lawfully know of what was said."""

    statements: tuple[Statement, ...]
    asides: tuple[Aside, ...]


def readable(
    routing: RoutingStrategy, agents: Sequence[str], visible_to: Mapping[str, frozenset[str] | None]
) -> dict[str, frozenset[str]]:
    """For each of `agents` (in the order of definition) whose words of earlier rounds it reads; never its own name."""
    return {
        reader: frozenset(
            other
            for other in agents
            if other != reader
            and _is_near(routing, agents, reader, other)
            and ((listed := visible_to.get(other)) is None or reader in listed)
        )
        for reader in agents
    }


def _is_near(routing: RoutingStrategy, agents: Sequence[str], reader: str, other: str) -> bool:
    match routing.topology:
        case "everyone":
            return True
        case "ring":
            apart = abs(agents.index(reader) - agents.index(other))
            return apart in (1, len(agents) - 1)
        case "star":
            return routing.hub in (reader, other)
        case "groups":
            return any(reader in members and other in members for members in routing.groups.values())


def known_to(table: Table, seat: Seat, routing: RoutingStrategy) -> Known:
    """What `seat` knows now."""
    now = table.round
    oldest = 0 if routing.history_rounds is None else now - routing.history_rounds
    recent = [statement for statement in table.in_order() if statement.round >= oldest]
    earlier = seat.reads | {seat.agent}
    statements = tuple(
        statement.without_asides()
        for statement in recent
        if statement.agent in (seat.waits_for if statement.round == now else earlier)
    )
    if not seat.channels:
        return Known(statements=statements, asides=())
    asides = tuple(
        Aside(round=statement.round, agent=statement.agent, channel=channel, text=text)
        for statement in recent
        if statement.round < now or statement.agent in seat.waits_for
        for channel, text in (statement.said.asides if statement.said else ())
        if channel in seat.channels
    )
    return Known(statements=statements, asides=asides)
