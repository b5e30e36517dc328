"""What happens in a game, and the players who learn of it.

An event carries its audience from the moment it is made. Its data holds nothing that this audience may not know: in
jail the keeper's words come from the role, not from the player. The data has names, never seat numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from mac_runner.environments.town_of_salem.model.state import GameState, Phase
from mac_runner.types import JsonObject, JsonValue


class EventKind(StrEnum):
    """The kinds of events that the rules make; `seat.texts` has one sentence for each."""

    # All players learn these.
    GAME_START = "game_start"
    DAY_START = "day_start"
    NIGHT_START = "night_start"
    VOTING_START = "voting_start"
    SPEECH = "speech"
    WHISPER_SEEN = "whisper_seen"
    VOTE = "vote"
    UNVOTE = "unvote"
    TRIAL = "trial"
    BALLOTS = "ballots"
    VERDICT = "verdict"
    DEATH = "death"
    NO_DEATH = "no_death"
    FULL_MOON = "full_moon"
    BLACKMAILED_ON_STAND = "blackmailed_on_stand"
    REVEALED = "revealed"
    REMEMBERED = "remembered"
    REVIVED = "revived"
    GAME_END = "game_end"
    # Only those concerned learn these.
    ROLE_CARD = "role_card"
    TEAM = "team"
    QUARRY = "quarry"
    WHISPER = "whisper"
    CHAT = "chat"
    JAIL_CHOSEN = "jail_chosen"
    TEAMMATE_JAILED = "teammate_jailed"
    SEANCE_CHOSEN = "seance_chosen"
    SEANCE = "seance"
    ACTION_CHOSEN = "deed_chosen"
    CONVERTED = "converted"
    TEAM_CHANGED = "team_changed"
    TEAM_JOINED = "team_joined"


class Says(StrEnum):
    """What is said, in one word.

    `role` and `roles` are listed in the claim's `roles`, the visitors of `visited by` in its `names`. The results from
    `attacked` to `blackmailed` are what befell the player it is about.
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
class Notice:
    """A kind of event that tells players what they did, found out or met with, and all that the game knows of it.

    It stands beside the role that gives it. Those that several roles or the rules give are below.
    """

    name: str
    """In transcripts."""
    words: str
    """The sentence to those who learn of it, with fields of its data."""
    befalls: str = ""
    """What befell them, as others learn it: `they were doused`; "": nothing did."""
    says: Says | None = None
    """The claim it proves: of its reader where it is no finding, else of the players that its data names."""
    is_finding: bool = False
    """Whether its reader found it out about others; with `Says.ROLES`, that `target` holds the `role` of its data."""
    is_failure: bool = False
    """Whether what its reader chose had no effect."""
    hinders: bool = False
    """Whether its reader did not do what they chose."""

    def __str__(self) -> str:
        return self.name

    @property
    def is_learned(self) -> bool:
        """Whether its reader learned something of others, or of what befell them."""
        return bool(self.befalls or self.says or self.is_finding)


AnyKind: TypeAlias = EventKind | Notice

_NO_NOTICE = Notice(name="", words="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened."""

    kind: AnyKind
    day: int
    phase: Phase
    data: JsonObject
    audience: frozenset[int] | None = None
    """The seats that learn of it; None for all players."""

    @property
    def notice(self) -> Notice:
        """Its kind; one that says nothing where the kind is none of a notice."""
        return self.kind if isinstance(self.kind, Notice) else _NO_NOTICE

    def text(self, key: str) -> str:
        """One field of the data as text."""
        return str(self.data[key])

    def names(self, key: str) -> list[str]:
        """The players in a list of the data; [] where there is none."""
        found = self.data.get(key)
        return [str(name) for name in found] if isinstance(found, list) else []

    def as_json(self) -> JsonValue:
        """All of it, for a digest."""
        audience: list[JsonValue] | None = None if self.audience is None else [*sorted(self.audience)]
        return [str(self.kind), self.day, self.phase, self.data, audience]


Events = tuple[Event, ...]

UNKNOWN_ROLE = "unknown"
"""The role shown for a body that was cleaned."""

BLOCKED = Notice(
    name="blocked",
    words="Someone kept you busy: if you chose to do something tonight, it did not happen.",
    befalls="they were kept busy",
    says=Says.BLOCKED,
    hinders=True,
)
BLOCK_RESISTED = Notice(
    name="block_resisted",
    words="Someone tried to block you and failed.",
    befalls="someone tried to block them and failed",
    says=Says.BLOCKED,
)
BLOCK_FAILED = Notice(name="block_failed", words="{target} could not be blocked.", is_failure=True)
TARGET_JAILED = Notice(
    name="target_jailed", words="{target} was in jail: what you chose did not happen.", is_failure=True
)
FAILED = Notice(name="failed", words="What you did had no effect on {target}.", is_failure=True)
ATTACKED = Notice(
    name="attacked",
    words="You were attacked, and {saved_by} saved you.",
    befalls="they were attacked and survived",
    says=Says.ATTACKED,
)
DEFENCE_TOO_STRONG = Notice(name="defence_too_strong", words="{attacked} was defended too well for your attack.")
RESULT = Notice(name="result", words="You found that {about} {found}.", is_finding=True)

# What investigations report. Players read these words, and the record is judged by them.
SUSPICIOUS = "suspicious"
NOT_SUSPICIOUS = "not suspicious"
MAFIA_MEMBER = "a member of the mafia"
A_VAMPIRE = "a Vampire"
NOT_A_VAMPIRE = "not a Vampire"
_VISITED_BY = "visited by "


def visited_by(names: Iterable[str]) -> str:
    """The finding that these players came to a house."""
    return f"{_VISITED_BY}{' and '.join(names) or 'nobody'}"


def visitors_in(finding: str) -> list[str] | None:
    """The players that a finding of `visited_by` names; None for another finding."""
    if not finding.startswith(_VISITED_BY):
        return None
    return [name for name in finding.removeprefix(_VISITED_BY).split(" and ") if name != "nobody"]


def with_article(name: str) -> str:
    """A role's name in a sentence: `an Escort`, `a Doctor`."""
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def public(state: GameState, kind: AnyKind, **data: JsonValue) -> Event:
    """An event that all players learn of."""
    return Event(kind=kind, day=state.day, phase=state.phase, data=data)


def private(state: GameState, kind: AnyKind, seats: Iterable[int], **data: JsonValue) -> Event:
    """An event that only `seats` learn of."""
    return Event(kind=kind, day=state.day, phase=state.phase, data=data, audience=frozenset(seats))
