"""A kind of sentence of scripted players: its name, when it is said, its wordings, and what they claim.

A kind claims exactly what `means` lists, in each of its wordings: `claims.extract` finds that and nothing else. No
wording begins with a word that ties it to the sentence before (`claims.attribution.CONTINUING`), because a speech is
made of several sentences. Liars and the honest use the same kinds, so the manner of speech betrays no one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Means(StrEnum):
    """What a sentence claims, in terms of its fields."""

    ROLE = "the speaker is {role}"
    WAS_ROLE = "the speaker was {role}"
    SUSPICIOUS = "the speaker found {name} suspicious"
    NOT_SUSPICIOUS = "the speaker found {name} not suspicious"
    EVIL = "{name} is evil"
    NOT_EVIL = "{name} is not evil"
    ALL_NOT_EVIL = "none of {names} is evil"
    OTHER_ROLE = "{name} is {role}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of sentence."""

    name: str
    when: str
    """When it is said."""
    wordings: tuple[str, ...]
    """Each with fields in braces, as for `str.format`; `{me}` is the speaker."""
    means: Means | None = None
    """What it claims; None: nothing."""


KINDS: dict[str, Kind] = {}
"""Every kind by its name."""


def declare(name: str, *, when: str, wordings: tuple[str, ...], means: Means | None = None) -> Kind:
    """A new kind, added to `KINDS`."""
    KINDS[name] = Kind(name=name, when=when, wordings=wordings, means=means)
    return KINDS[name]


class Sentence(NamedTuple):
    """One sentence to be said, not yet in words."""

    kind: Kind
    fields: Mapping[str, str]

    def points(self) -> frozenset[tuple[str, str]]:
        """What it claims: `role` and a role, `against` or `for` and a player."""
        match self.kind.means:
            case Means.ROLE | Means.WAS_ROLE:
                return frozenset({("role", self.fields["role"])})
            case Means.SUSPICIOUS | Means.EVIL:
                return frozenset({("against", self.fields["name"])})
            case Means.NOT_SUSPICIOUS | Means.NOT_EVIL:
                return frozenset({("for", self.fields["name"])})
            case Means.ALL_NOT_EVIL:
                return frozenset(("for", name) for name in names_of(self.fields["names"]))
            case _:
                return frozenset()


def say(kind: Kind, **fields: str) -> Sentence:
    """A sentence of that kind with these fields."""
    return Sentence(kind, fields)


def join_names(names: list[str]) -> str:
    """`Abel, Caleb and Silas`."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def names_of(joined: str) -> list[str]:
    """The names in what `join_names` made."""
    return joined.replace(" and ", ", ").split(", ")
