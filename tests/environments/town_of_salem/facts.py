"""What is so on each day of a game that is watched, and what a seat was told: the facts that `entitlement` judges by.

They come from the choices that were made and from what the players are, and from nothing that says who learns of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from mac_runner.environments.town_of_salem.testing import Options
from mac_runner.types import JsonObject

MAFIA = frozenset(
    {
        *("godfather", "mafioso", "framer", "janitor", "forger", "disguiser"),
        *("blackmailer", "consigliere", "consort"),
    }
)
VAMPIRES = frozenset({"vampire"})
TOWN = frozenset(
    {
        *("investigator", "lookout", "sheriff", "spy", "bodyguard", "doctor", "jailor", "veteran", "vigilante"),
        *("vampire hunter", "escort", "mayor", "medium", "retributionist", "transporter"),
    }
)
NEUTRAL = frozenset(
    {
        *("amnesiac", "survivor", "executioner", "jester", "witch", "arsonist", "serial killer", "werewolf"),
        *VAMPIRES,
    }
)
ALL_ROLES = MAFIA | TOWN | NEUTRAL
_CAME_FROM = {
    "vigilante": frozenset({"vampire hunter"}),
    "jester": frozenset({"executioner"}),
    "godfather": MAFIA,
    "mafioso": MAFIA,
}
"""What somebody may have been for a moment of a dawn on the way to a role."""


class Deed(NamedTuple):
    """What a seat chose in a night: the verb and the seats, in order."""

    verb: str
    targets: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Day:
    """What is so on one day and in its night, as the game itself knows it.

    `held` are the roles each seat was seen to hold; `ghosts` who was dead when night had fallen; `chosen` what each
    chose at night; `jail_choices` whom each meant to jail; `keeper` and `prisoner` are those of the night; `seances`
    says which of the dead will talk with whom.
    """

    held: dict[int, set[str]] = field(default_factory=dict)
    ghosts: set[int] = field(default_factory=set)
    chosen: dict[int, Deed] = field(default_factory=dict)
    jail_choices: dict[int, set[int]] = field(default_factory=dict)
    keeper: int | None = None
    prisoner: int | None = None
    seances: dict[int, int] = field(default_factory=dict)

    def is_one_of(self, seat: int, roles: Collection[str]) -> bool:
        """Whether `seat` held one of `roles`."""
        return not self.held.get(seat, set()).isdisjoint(roles)

    def may_hit(self, verbs: Collection[str]) -> set[int]:
        """Whom what is called `verbs` may have reached this night, with everything that could have sent it astray."""
        hit: set[int] = set()
        for seat in self.held:
            hit |= self.may_aim(seat, verbs)
        return self.swapped(hit)

    def may_aim(self, seat: int, verbs: Collection[str]) -> set[int]:
        """Whom `seat` may have done `verbs` to, by its own choice or by that of a Witch or a Retributionist."""
        aimed: set[int] = set()
        mine = self.chosen.get(seat)
        if mine is not None and mine.verb in verbs:
            aimed |= set(mine.targets)
        for verb, targets in self.chosen.values():
            if verb in ("control", "raise") and seat in self.swapped({targets[0]}):
                aimed.add(targets[1])
        return aimed

    def swapped(self, seats: set[int]) -> set[int]:
        """`seats`, and those a Transporter may have put in their places."""
        moved = {seat for verb, targets in self.chosen.values() if verb == "swap" for seat in targets}
        return seats | moved if seats & moved else seats

    def may_clean(self, body: int) -> frozenset[int]:
        """Who may have cleaned a body this night."""
        cleaners = (seat for seat in self.chosen if self.is_one_of(seat, {"janitor"}))
        return frozenset(seat for seat in cleaners if body in self.swapped(self.may_aim(seat, {"clean"})))

    def puppeteers(self, seat: int) -> list[int]:
        """Those who may have made `seat` act this night: Witches, and for one of the dead Retributionists."""
        return [
            other
            for other, (verb, targets) in self.chosen.items()
            if verb in ("control", "raise") and seat in self.swapped({targets[0]})
        ]


@dataclass(slots=True, kw_only=True)
class Notice:
    """A private notice as a seat finds it in its view: `day` is when it was given, `morrow` the day after."""

    kind: str
    seat: int
    data: JsonObject
    day: Day
    morrow: Day
    names: tuple[str, ...]
    options: Options

    def about(self, key: str = "target") -> int:
        """The seat of the player named under `key`."""
        return self.names.index(str(self.data[key]))

    def is_one_of(self, *roles: str) -> bool:
        """Whether the reader held one of `roles` on that day."""
        return self.day.is_one_of(self.seat, roles)

    def becomes(self, *roles: str) -> bool:
        """Whether the reader held one of `roles` on that day or came to hold it by the next."""
        next_held = self.morrow.held.get(self.seat, set())
        held = next_held.union(*(_CAME_FROM.get(role, frozenset[str]()) for role in next_held))
        return self.is_one_of(*roles) or not held.isdisjoint(roles)

    def has_teammate(self, seat: int) -> bool:
        """Whether the reader and `seat` are of one team, by what they are or have just become."""
        held = [self.day.held.get(who, set()) | self.morrow.held.get(who, set()) for who in (self.seat, seat)]
        return any(all(not roles.isdisjoint(team) for roles in held) for team in (MAFIA, VAMPIRES))
