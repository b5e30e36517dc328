"""The games of a run as its figures read them: outcomes from the index, one at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

import msgspec

from mac_runner.environments.town_of_salem.game import GameResult, PlayerResult, faction_dealt
from mac_runner.environments.town_of_salem.measures import Count
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.figures.data import RunData
from mac_runner.intervals import ClusteredRate
from mac_runner.results import parsed
from mac_runner.types import stable_hash

FACTIONS: Final = (Faction.TOWN, Faction.MAFIA, Faction.NEUTRAL)
"""In the order of all figures; other factions come after them."""


class Seat(PlayerResult, frozen=True):
    """A player of a finished game, with what is measured."""

    agent: str = ""
    alive: bool = False
    death: str | None = None
    died_on_day: int | None = None
    measures: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def side(self) -> str:
        """The faction of the role dealt."""
        return faction_dealt(self)

    def count(self, name: Count) -> int:
        """What was counted for it."""
        return self.measures.get(name, 0)

    def totals(self) -> dict[str, int]:
        """What was counted for it, over all days."""
        found: dict[str, int] = {}
        for key, count in self.measures.items():
            name = key.partition(".")[0]
            found[name] = found.get(name, 0) + count
        return found

    def by_day(self, name: Count) -> Iterator[tuple[int, int]]:
        """What was counted for it on each day."""
        prefix = f"{name}."
        for key, count in self.measures.items():
            if key.startswith(prefix):
                yield int(key.removeprefix(prefix)), count


class Game(GameResult, frozen=True):
    """A finished game."""

    players: tuple[Seat, ...]
    number: int = 0
    cluster: int | str | None = None

    @property
    def is_measured(self) -> bool:
        """Whether what players did was counted; earlier versions did not."""
        return any(seat.measures for seat in self.players)

    def deal(self, seed: object) -> int:
        """The names and roles at the table: two games of one deal differ in who plays, and how."""
        return stable_hash(str(seed), self.number, *(f"{seat.agent}={seat.role}" for seat in self.players))


def games_of(data: RunData) -> Iterator[Game]:
    """The finished games of a run, in task order."""
    for ended in data.ended():
        if ended.outcome is not None:
            game = parsed(Game, ended.outcome, f"the outcome of {ended.task_id} in the index")
            yield msgspec.structs.replace(game, number=ended.number, cluster=ended.cluster)


class FailedSeat(NamedTuple):
    """A player of a game that failed. `role` is empty where it was not recorded."""

    definition: str
    model: str
    role: str


def failed_games(data: RunData) -> Iterator[list[FailedSeat]]:
    """The players of each game that failed."""
    failed: dict[str, list[FailedSeat]] = {ended.task_id: [] for ended in data.ended() if ended.outcome is None}
    rows = data.read_table("agents", lambda row: row.get("task_id") in failed) if failed else iter(())
    for row in rows:
        role = row.get("role")
        seat = FailedSeat(str(row["definition"]), str(row["model"]), role if isinstance(role, str) else "")
        failed[str(row["conversation"])].append(seat)
    yield from failed.values()


Key: TypeAlias = tuple[str | int, ...]


class Tally:
    """Rates over the cases of games, by any key. A game is added at once, because its cases belong together."""

    def __init__(self) -> None:
        self.rates: defaultdict[Key, ClusteredRate] = defaultdict(ClusteredRate)

    def add(self, cases: Iterable[tuple[Key, int, int]]) -> None:
        """Count a game: for each key how many of how many cases."""
        sums: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0])
        for key, hits, n in cases:
            sums[key][0] += hits
            sums[key][1] += n
        for key, (hits, n) in sums.items():
            self.rates[key].add(hits, n)

    def get(self, *key: str | int) -> ClusteredRate:
        """The rate of a key; an empty one where nothing was counted."""
        return self.rates.get(key, ClusteredRate())

    def share(self, *key: str | int) -> float | None:
        """The rate of a key as a number; None where nothing was counted."""
        rate = self.get(*key)
        return rate.wins / rate.n if rate.n else None

    def keys_of(self, group: str) -> list[Key]:
        """The keys that begin with a word."""
        return [key for key in self.rates if key[0] == group]


def in_order(sides: Iterable[str]) -> list[str]:
    """Factions in the order of all figures."""
    known = [str(faction) for faction in FACTIONS]
    return sorted(
        {str(side) for side in sides}, key=lambda side: (known.index(side) if side in known else len(known), side)
    )


def side_of(role: str) -> str:
    """The faction of a role; empty for one that is not known here."""
    found = ROLES.get(role)
    return "" if found is None else str(found.faction)
