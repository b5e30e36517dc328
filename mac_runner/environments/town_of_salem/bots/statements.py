"""What scripted players write, and how they understand what others say.

They understand free speech, that of models too, as far as `claims` does. No statement is believed for its form:
`beliefs` weighs what it is worth. Wills are written in the fixed sentences of this file; speech has more (`kinds`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from mac_runner.environments.town_of_salem.bots.night_talk import TARGET, TARGET_AGREED
from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, extract
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.rules.lobbies import NAMES


@cache
def _taking() -> re.Pattern[str]:
    """The choice of a victim; a plan is not a claim, so `claims` does not find it."""
    wordings = (re.escape(text.rstrip(".")) for kind in (TARGET, TARGET_AGREED) for text in kind.wordings)
    choices = "|".join(text.replace(r"\{name\}", "([A-Z][a-z]+)") for text in wordings)
    return re.compile(rf"(?:^|(?<=[.!?] ))(?:{choices})(?=[.!]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one utterance says."""

    claims: str | None
    """The role its speaker claims."""
    accuses: tuple[str, ...]
    clears: tuple[str, ...]
    roles: tuple[tuple[str, str], ...] = ()
    """Other players and the roles it gives them."""
    takes: str | None = None
    """The player that a team is to kill."""


@follows_roles
@lru_cache(maxsize=4096)
def understand(text: str, players: tuple[str, ...] = NAMES) -> Statement:
    """What `text` says of its speaker and of `players`, by default all possible names."""
    said = extract(text, players)
    takes = _taking().search(text)
    return Statement(
        claims=next((claim.roles[0] for claim in said if claim.kind is ClaimKind.ROLE), None),
        accuses=_named(claim for claim in said if claim.is_against),
        clears=_named(claim for claim in said if claim.is_in_favour),
        roles=tuple((claim.about, claim.roles[0]) for claim in said if claim.about and len(claim.roles) == 1),
        takes=next(filter(None, takes.groups())) if takes else None,
    )


def _named(claims: Iterable[Claim]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(claim.about for claim in claims if claim.about))


def claim(role: str, *, dead: bool = False) -> str:
    """`I am the ROLE.`"""
    return f"I {'was' if dead else 'am'} the {role}."


def accuse(names: Iterable[str]) -> str:
    """One accusing sentence a name."""
    return " ".join(f"I found that {name} is suspicious." for name in names)


def clear(names: Iterable[str]) -> str:
    """One clearing sentence a name."""
    return " ".join(f"I found that {name} is not suspicious." for name in names)


def write(verb: str, *, thought: str = "", will: str = "", death_note: str = "", **values: str) -> str:
    """A reply that thinks `thought`, then does one act, with a new will and death note if there are any.

    `values` are what the act takes, by the keys of its slots.
    """
    thinking = f"<thinking>{thought}</thinking>\n" if thought else ""
    side = f"<will>{will}</will>\n" if will else ""
    side += f"<death_note>{death_note}</death_note>\n" if death_note else ""
    return f"{thinking}{side}{ACTS[verb].written(**values)}"
