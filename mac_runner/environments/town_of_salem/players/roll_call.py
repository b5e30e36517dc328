"""What the role list says of the claims: how likely it is that whoever claims a role lies.

The list is public. Each slot that names a role has room for one claim to it; the slots that are filled by lot have
room for any one each, whatever it claims to be. Claims beyond the room are lies, and who tells them nobody knows: the
chance is spread evenly over all who claim the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from mac_runner.environments.town_of_salem.lobbies import roles_of
from mac_runner.environments.town_of_salem.roles import ROLES


class Room:
    """The slots of a role list that nobody is known to fill: by role name for those that name one, and drawn ones."""

    def __init__(self, lobby: Iterable[str], known: Iterable[str]) -> None:
        slots = [[ROLES[role].name for role in roles_of(slot)] for slot in lobby]
        self.named = Counter(slot[0] for slot in slots if len(slot) == 1)
        self.drawn = [slot for slot in slots if len(slot) > 1]
        for role in known:
            self._take(role)

    def _take(self, role: str) -> None:
        if self.named[role]:
            self.named[role] -= 1
            return
        # Whoever changed roles in the game fills no slot of the new one.
        slot = next((slot for slot in self.drawn if role in slot), None)
        if slot is not None:
            self.drawn.remove(slot)

    def drawn_for(self, role: str) -> int:
        """How many drawn slots could hold a role."""
        return sum(role in slot for slot in self.drawn)

    def left(self, claims: Iterable[str]) -> list[str]:
        """The roles one more player could claim without a contradiction."""
        counts = Counter(claims)
        surplus = sum((counts - self.named).values())
        drawn = {role for slot in self.drawn for role in slot} if surplus < len(self.drawn) else set[str]()
        return sorted({role for role in self.named if self.named[role] > counts[role]} | drawn)


def chances_of_lie(room: Room, claims: Mapping[str, str]) -> dict[str, float]:
    """The chance that each of these claims, by name, is a lie, given the room there is for all of them together."""
    claimants: dict[str, list[str]] = defaultdict(list)
    for name, role in claims.items():
        claimants[role].append(name)
    surplus = {role: max(0, len(names) - room.named[role]) for role, names in claimants.items()}
    drawn_for = {role: room.drawn_for(role) for role in claimants}
    contenders = sum(min(surplus[role], drawn_for[role]) for role in claimants)
    granted = min(1.0, len(room.drawn) / contenders) if contenders else 0.0
    return {
        name: (surplus[role] - granted * min(surplus[role], drawn_for[role])) / len(names)
        for role, names in claimants.items()
        for name in names
    }
