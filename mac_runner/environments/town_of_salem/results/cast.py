"""Who holds which role while a recorded game goes on, for readers who may know it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.results import parsed
from mac_runner.types import JsonObject

_QUOTED: Final = re.compile("(“[^”]*”)")
"""Words of players; they hold no other curly quotes."""
_ROLE_NEWS: Final = frozenset({EventKind.ROLE_CARD.value, EventKind.CONVERTED.value})


class _Member(msgspec.Struct, frozen=True):
    name: str
    role: str
    definition: str
    model: str
    target: str | None = None


class _Event(msgspec.Struct, frozen=True):
    audience: list[str] | str
    data: dict[str, Any]
    kind: str = ""


class Cast:
    """The players of a game with the roles they hold, event by event."""

    def __init__(self, record: JsonObject) -> None:
        """Raises RunDirectoryError for a cast or events of another form."""
        self._members = parsed(list[_Member], record.get("cast", []), "the cast of the record")
        self._news: dict[int, Mapping[str, str]] = {}
        for place, event in enumerate(parsed(list[_Event], record.get("events", []), "the events of the record")):
            if event.kind in _ROLE_NEWS:
                self._news[place] = dict.fromkeys(event.audience, str(event.data.get("role")))
        self.roles = {member.name: member.role.title() for member in self._members}
        """The role each player holds after the last event that was looked at, from the roles dealt on."""
        names = "|".join(sorted(map(re.escape, self.roles), key=len, reverse=True))
        # A name that has its role behind it already is left alone.
        self._name = re.compile(rf"(?<!\w)({names})(?!\w)(?! \()") if names else None

    def lines(self) -> Sequence[str]:
        """The cast as it was dealt, with who played each part."""
        if not self._members:
            return ()
        return ("The cast", *map(_line, self._members))

    def role_at(self, player: str, place: int) -> str:
        """The role that a player holds at the event `place`; empty for a name that no player has."""
        dealt = next((member.role.title() for member in self._members if member.name == player), "")
        news = (roles[player] for since, roles in self._news.items() if since < place and player in roles)
        return [dealt, *news][-1]

    def named(self, place: int, text: str) -> str:
        """`text`, at the event `place`, with the role behind each name; players' own words stay as they are."""
        self.roles |= self._news.get(place, {})
        if self._name is None:
            return text
        name = self._name
        parts = _QUOTED.split(text)
        return "".join(part if part.startswith("“") else name.sub(self._with_role, part) for part in parts)

    def _with_role(self, match: re.Match[str]) -> str:
        return self.name(match.group(1))

    def name(self, player: str) -> str:
        """`Abel (Sheriff)`."""
        return f"{player} ({self.roles[player]})" if player in self.roles else player


def _line(member: _Member) -> str:
    target = "" if member.target is None else f"  target: {member.target}"
    return f"{member.name:<12} {member.role.title():<24} {member.definition} (model {member.model}){target}"
