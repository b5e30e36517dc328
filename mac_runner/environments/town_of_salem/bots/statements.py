"""FIXME How a scripted player writes a reply: the inverse of the parser, from the same table of acts.

What scripted players say to each other, and how they understand it.

They speak in a few fixed sentences and understand free speech, that of models too, as far as `speech` does. Nobody
believes a statement for its form: what it is worth is weighed in `beliefs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, extract
from mac_runner.environments.town_of_salem.game.acts import ACTS, Form
from mac_runner.environments.town_of_salem.game.lobbies import NAMES
from mac_runner.environments.town_of_salem.roles import follows_roles


def write(
    verb: str,
    *,
    target: str = "",
    second: str = "",
    text: str = "",
    choice: str = "",
    thought: str = "",
    will: str = "",
    death_note: str = "",
) -> str:
    """A reply that thinks `thought`, then does one act, with a new will and death note if there are any."""
    thinking = f"<thinking>{thought}</thinking>\n" if thought else ""
    side = f"<will>{will}</will>\n" if will else ""
    side += f"<death_note>{death_note}</death_note>\n" if death_note else ""
    act = f"<{verb}/>"
    match ACTS[verb].form:
        case Form.BARE:
            pass
        case Form.TEXT:
            channel = f' channel="{choice}"' if choice else ""
            act = f"<{verb}{channel}>{text}</{verb}>"
        case Form.NAME:
            act = f"<{verb}>{target}</{verb}>"
        case Form.TWO_NAMES:
            act = f"<{verb}>{target}, {second}</{verb}>"
        case Form.NAME_AND_TEXT:
            act = f'<{verb} to="{target}">{text}</{verb}>'
        case Form.CHOICE:
            act = f"<{verb}>{choice}</{verb}>"
    return f"{thinking}{side}{act}"


# A plan is no claim.
_TAKING = re.compile(r"(?:^|(?<=[.!?] ))I say we take ([A-Z][a-z]+)(?=[.!]|$)")


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


@follows_roles
@lru_cache(maxsize=4096)
def understand(text: str, players: tuple[str, ...] = NAMES) -> Statement:
    """What `text` says of its speaker and of `players`; by default of everybody who could be one."""
    said = extract(text, players)
    takes = _TAKING.search(text)
    return Statement(
        claims=next((claim.roles[0] for claim in said if claim.kind is ClaimKind.ROLE), None),
        accuses=_named(claim for claim in said if claim.is_against),
        clears=_named(claim for claim in said if claim.is_in_favour),
        roles=tuple((claim.about, claim.roles[0]) for claim in said if claim.about and len(claim.roles) == 1),
        takes=takes.group(1) if takes else None,
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


def tell_roles(roles: Mapping[str, str]) -> str:
    """`NAME is the ROLE.`, one sentence a name."""
    return " ".join(f"{name} is the {role}." for name, role in roles.items())


def take(name: str) -> str:
    """What a team says of whom it should kill."""
    return f"I say we take {name}."
