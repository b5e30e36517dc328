"""What scripted players say and write, in the words of `wordings.yaml`, and how they understand what others say.

They understand free speech, that of models too, as far as `claims` does. No statement is believed for its form:
`Seat.suspicion` weighs what it is worth.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from mac_runner.config.document import YAML_SIZE_BYTES_MAX, parse_document
from mac_runner.environments.town_of_salem.claims import ClaimKind, extract
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.rules.lobbies import NAMES
from mac_runner.errors import ConfigError
from mac_runner.files import read_regular
from mac_runner.structs import convert

_FILE: Final = Path(__file__).with_name("wordings.yaml")


class Kind(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of sentence."""

    name: str
    when: str
    """When it is said."""
    wordings: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    fields: frozenset[str] = frozenset()
    """What its sentences fill in, besides `{me}`, the speaker."""
    means: str = ""
    """What it claims; "": nothing."""

    def __post_init__(self) -> None:
        known = {"me", *self.fields}
        for text in (*self.wordings, self.means):
            for _, field, _, _ in Formatter().parse(text):
                if field is not None and field not in known:
                    listed = ", ".join(f"{{{name}}}" for name in sorted(known))
                    raise ValueError(f"{text!r} names {{{field}}}, and what is filled in is {listed}")


class Wordings(NamedTuple):
    """All kinds of sentence, and what has one wording only, by name."""

    kinds: Mapping[str, Kind]
    lines: Mapping[str, str]


class _Written(msgspec.Struct, forbid_unknown_fields=True):
    kinds: dict[str, dict[str, Any]]
    lines: dict[str, str]


@cache
def wordings() -> Wordings:
    """What `wordings.yaml` holds, read when a scripted player first needs it."""
    return read_wordings(read_regular(_FILE, YAML_SIZE_BYTES_MAX), f"{_FILE.parent.name}/{_FILE.name}")


def read_wordings(data: bytes, source: str) -> Wordings:
    """Wordings as they are written. Raises ConfigError for a mistake, with `source` and the kind that it is in."""
    kinds, place = dict[str, Kind](), source
    try:
        written = convert(parse_document(data, source).value, _Written)
        for name, entry in written.kinds.items():
            place = f"{source}: kind {name!r}"
            kinds[name] = convert({**entry, "name": name}, Kind)
    except msgspec.ValidationError as fault:
        raise ConfigError(f"{place}: {fault}") from None
    return Wordings(kinds, written.lines)


class Sentence(NamedTuple):
    """One sentence to be said, not yet in words."""

    kind: Kind
    fields: Mapping[str, str]


def say(kind: str, /, **fields: str) -> Sentence:
    """A sentence of that kind with these fields."""
    return Sentence(wordings().kinds[kind], fields)


def plain(kind: str, /, **fields: str) -> str:
    """A sentence of that kind in its first wording."""
    return wordings().kinds[kind].wordings[0].format(**fields)


def line(name: str, /, **fields: str) -> str:
    """What has one wording only, with these fields."""
    return wordings().lines[name].format(**fields)


@cache
def _taking() -> re.Pattern[str]:
    """The choice of a victim; a plan is not a claim, so `claims` does not find it."""
    kinds = (wordings().kinds[name] for name in ("target", "target agreed"))
    said = (re.escape(text.rstrip(".")) for kind in kinds for text in kind.wordings)
    choices = "|".join(text.replace(r"\{name\}", "([A-Z][a-z]+)") for text in said)
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

    def points(self) -> frozenset[tuple[str, str]]:
        """What it claims: `role` and a role, `against` or `for` and a player."""
        named = (("role", (self.claims,) if self.claims else ()), ("against", self.accuses), ("for", self.clears))
        return frozenset((point, name) for point, names in named for name in names)


@follows_roles
@lru_cache(maxsize=4096)
def understand(text: str) -> Statement:
    """What `text` says of its speaker and of the players, by all possible names."""
    said = extract(text, NAMES)
    takes = _taking().search(text)
    return Statement(
        claims=next((claim.roles[0] for claim in said if claim.kind is ClaimKind.ROLE), None),
        accuses=tuple(dict.fromkeys(claim.about for claim in said if claim.is_against and claim.about)),
        clears=tuple(dict.fromkeys(claim.about for claim in said if claim.is_in_favour and claim.about)),
        roles=tuple((claim.about, claim.roles[0]) for claim in said if claim.about and len(claim.roles) == 1),
        takes=next(filter(None, takes.groups())) if takes else None,
    )


def points_of(texts: Iterable[str]) -> frozenset[tuple[str, str]]:
    """What these texts claim."""
    return frozenset().union(*(understand(text).points() for text in texts))


def points_in(sentences: Iterable[Sentence]) -> frozenset[tuple[str, str]]:
    """What these sentences claim: what their hearers take from them, whatever the wording."""
    return points_of(plain(kind.name, **fields) for kind, fields in sentences if kind.means)


def write(verb: str, *, thought: str = "", will: str = "", death_note: str = "", **values: str) -> str:
    """A reply that thinks `thought`, then does one act, with a new will and death note if there are any.

    `values` are what the act takes, by the keys of its slots.
    """
    thinking = f"<thinking>{thought}</thinking>\n" if thought else ""
    side = f"<will>{will}</will>\n" if will else ""
    side += f"<death_note>{death_note}</death_note>\n" if death_note else ""
    return f"{thinking}{side}{ACTS[verb].written(**values)}"
