"""A recorded game, read for pages: its events, its players with their roles and factions, its claims and its nights."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, Final

import msgspec

from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.results.cast import Cast
from mac_runner.environments.town_of_salem.results.truth import RecordedClaim, RecordedNight
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.results import parsed
from mac_runner.types import JsonObject
from mac_runner.view_model import Tone

DEATH_NOTE: Final = "death note"
_TONES: Final[dict[Faction, Tone]] = {
    Faction.TOWN: "one",
    Faction.MAFIA: "two",
    Faction.NEUTRAL: "three",
    Faction.VAMPIRE: "four",
}


class GameEvent(msgspec.Struct, frozen=True):
    """An event of the record."""

    when: str
    audience: tuple[str, ...] | str
    data: dict[str, Any]
    kind: str = ""
    day: int = 0

    @property
    def label(self) -> str:
        """The day or night that it belongs to: `Day 2`, `Night 3`."""
        return self.when.partition(",")[0]

    @property
    def is_night(self) -> bool:
        """Whether it happened at night."""
        return self.when.startswith("Night")

    @property
    def seats(self) -> tuple[str, ...] | None:
        """Who learned of it; None for all."""
        return self.audience if isinstance(self.audience, tuple) else None

    def text(self, key: str) -> str:
        """A field of its data as text; empty where there is none."""
        found = self.data.get(key)
        return found if isinstance(found, str) else ""

    def names(self, key: str) -> tuple[str, ...]:
        """A list of its data; empty where there is none."""
        found = self.data.get(key)
        return tuple(map(str, found)) if isinstance(found, list | dict) else ()


class _Member(msgspec.Struct, frozen=True):
    name: str
    role: str


class PlayedGame:
    """What the record of a game holds, also of one that goes on or failed."""

    def __init__(self, transcript: JsonObject) -> None:
        """Raises RunDirectoryError for a record of another form."""
        record = transcript.get("record")
        self._record: JsonObject = record if isinstance(record, dict) else {}
        outcome = transcript.get("outcome")
        self.outcome: JsonObject = outcome if isinstance(outcome, dict) else {}
        self.events = parsed(list[GameEvent], self._record.get("events", []), "the events of the record")
        members = parsed(list[_Member], self._record.get("cast", []), "the cast of the record")
        self.names = tuple(member.name for member in members)
        self._cast = Cast(self._record)

    @cached_property
    def claims(self) -> list[RecordedClaim]:
        """What players said is so, in order."""
        return parsed(list[RecordedClaim], self._record.get("claims", []), "the claims of the record")

    @cached_property
    def nights(self) -> dict[int, RecordedNight]:
        """The nights that were resolved, by their day."""
        found = parsed(list[RecordedNight], self._record.get("nights", []), "the nights of the record")
        return {night.day: night for night in found}

    def role_at(self, name: str, place: int) -> str:
        """The role that a player holds at an event."""
        return self._cast.role_at(name, place)

    def faction_at(self, name: str, place: int) -> Faction | None:
        """The faction of a player at an event; None for a role that is not registered here."""
        return faction_of(self.role_at(name, place))

    def is_seen_by_all_of(self, earlier: int, later: int) -> bool:
        """Whether all who saw the later event saw the earlier one too."""
        first, then = self.events[earlier].seats, self.events[later].seats
        return first is None or (then is not None and {*then} <= {*first})

    def shown_speaker(self, claim: RecordedClaim) -> str:
        """Who speaks in a claim as its event shows it: in jail the Jailor; a death note has no name."""
        if claim.channel == DEATH_NOTE:
            return DEATH_NOTE
        return self.events[claim.event].text("player") or claim.player


def faction_of(role: str) -> Faction | None:
    """The faction of a role by its name."""
    found = ROLES.get(role.lower())
    return None if found is None else found.faction


def tone_of(faction: Faction | None) -> Tone:
    """How pages colour a faction."""
    return "plain" if faction is None else _TONES[faction]


def title_of(faction: Faction | None) -> str:
    """A faction in a word."""
    return "" if faction is None else faction.value.title()


def listed(names: Collection[str]) -> str:
    """Names in a line."""
    return ", ".join(names)
