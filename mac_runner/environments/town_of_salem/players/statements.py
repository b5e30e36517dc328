"""What scripted players say to each other, and how they understand it.

They speak in a few fixed sentences, so that a statement made by one can be taken up by the others; free text of other
players is understood as far as it happens to contain such a sentence. Nobody believes a statement for its form: what it
is worth is weighed in `beliefs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from mac_runner.environments.town_of_salem.roles import ROLES

_ROLE_NAMES = "|".join(
    re.escape(name) for name in sorted((role.name for role in ROLES.values()), key=len, reverse=True)
)
# Whole sentences only: "I do not think Abel is suspicious." says nothing of the kind.
_CLAIM = re.compile(rf"(?:^|(?<=[.!?] ))I (?:am|was) the ({_ROLE_NAMES})(?=[.!]|$)")
_ROLE_OF = re.compile(rf"(?:^|(?<=[.!?] ))([A-Z][a-z]+) is the ({_ROLE_NAMES})(?=[.!]|$)")
_TAKING = re.compile(r"(?:^|(?<=[.!?] ))I say we take ([A-Z][a-z]+)(?=[.!]|$)")
_FINDING = re.compile(r"(?:^|(?<=[.!?] ))I found that ([A-Z][a-z]+) is (not )?suspicious(?=[.!]|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What one utterance says: the role its speaker claims, whom it accuses and whom it clears.

    `roles` are roles told of others, `takes` is whom a team is to kill.
    """

    claims: str | None
    accuses: tuple[str, ...]
    clears: tuple[str, ...]
    roles: tuple[tuple[str, str], ...] = ()
    takes: str | None = None


@lru_cache(maxsize=4096)
def understand(text: str) -> Statement:
    """Read the fixed sentences out of `text`. Names are not checked here: who is no player is simply never met."""
    claim = _CLAIM.search(text)
    takes = _TAKING.search(text)
    findings = _FINDING.findall(text)
    return Statement(
        claims=claim.group(1) if claim else None,
        accuses=tuple(name for name, negated in findings if not negated),
        clears=tuple(name for name, negated in findings if negated),
        roles=tuple(_ROLE_OF.findall(text)),
        takes=takes.group(1) if takes else None,
    )


def claim(role: str, *, dead: bool = False) -> str:
    """`I am the ROLE.`"""
    return f"I {'was' if dead else 'am'} the {role}."


def accuse(names: Iterable[str]) -> str:
    """One accusing sentence a name."""
    return " ".join(f"I found that {name} is suspicious." for name in names)


def clear(names: Iterable[str]) -> str:
    """One clearing sentence a name."""
    return " ".join(f"I found that {name} is not suspicious." for name in names)


def tell_roles(roles: Mapping[str, str]) -> str:
    """`NAME is the ROLE.`, one sentence a name."""
    return " ".join(f"{name} is the {role}." for name, role in roles.items())


def take(name: str) -> str:
    """What a team says of whom it should kill."""
    return f"I say we take {name}."
