"""A claim: one thing that somebody said is so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ClaimKind(StrEnum):
    """What a claim is about: the speaker's own role, what the speaker found out, or what another player is."""

    ROLE = "role"
    RESULT = "result"
    ACCUSATION = "accusation"
    DEFENCE = "defence"


class Says(StrEnum):
    """What is said, in one word.

    `role` and `roles` are spelt out in the claim's `roles`, the visitors of `visited by` in its `names`. Of results,
    `blocked` to `blackmailed` are what befell the player it is about.
    """

    ROLE = "role"
    WAS_ROLE = "role held before"
    # Results.
    SUSPICIOUS = "suspicious"
    NOT_SUSPICIOUS = "not suspicious"
    ROLES = "one of the roles"
    VISITED_BY = "visited by"
    VISITED_BY_MAFIA = "visited by the mafia"
    VAMPIRE = "vampire"
    NOT_VAMPIRE = "not a vampire"
    ATTACKED = "attacked"
    BLOCKED = "blocked"
    CONTROLLED = "controlled"
    TRANSPORTED = "transported"
    DOUSED = "doused"
    JAILED = "jailed"
    BLACKMAILED = "blackmailed"
    # What others are; `mafia` may be a result too.
    MAFIA = "mafia"
    NOT_MAFIA = "not mafia"
    TOWN = "town"
    NOT_TOWN = "not town"
    EVIL = "evil"
    NOT_EVIL = "not evil"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One claim and where it stands: `text[start:end]` are the words that make it.

    `about` is the name of the player it is about, empty for the speaker. `EVIL` stands for every way of speaking
    against a player that names neither faction nor role, a call to vote for them included, and `NOT_EVIL` for every
    such way of standing up for them.
    """

    kind: ClaimKind
    says: Says
    about: str = ""
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    start: int
    end: int

    @property
    def is_against(self) -> bool:
        """Whether it makes the player it is about look guilty."""
        return self.kind is ClaimKind.ACCUSATION or (self.kind is ClaimKind.RESULT and self.says in _GUILTY)

    @property
    def is_in_favour(self) -> bool:
        """Whether it makes the player it is about look innocent."""
        return self.kind is ClaimKind.DEFENCE or (self.kind is ClaimKind.RESULT and self.says in _INNOCENT)


_GUILTY = frozenset({Says.SUSPICIOUS, Says.MAFIA, Says.VAMPIRE})
_INNOCENT = frozenset({Says.NOT_SUSPICIOUS})
