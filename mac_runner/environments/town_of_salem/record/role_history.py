"""Which player held which role when, and what each had learned by then; read from the game's events.

A moment is a place in the list of events; it follows all events before that place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mac_runner.environments.town_of_salem import record
from mac_runner.environments.town_of_salem.model.events import (
    RESULT,
    UNKNOWN_ROLE,
    Event,
    EventKind,
    Says,
    with_article,
)
from mac_runner.environments.town_of_salem.model.state import TEAMS, Player
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility, Role


class _Held(NamedTuple):
    since: int
    role: str
    event: Event


class RoleHistory:
    """The roles a game's players held, and the findings they received."""

    def __init__(self, events: Sequence[Event], players: Sequence[Player]) -> None:
        self._dealt = {player.name: player.dealt for player in players}
        self._held: dict[str, list[_Held]] = {player.name: [] for player in players}
        self._learned: dict[str, list[tuple[int, Event]]] = {player.name: [] for player in players}
        self._shown: dict[str, list[tuple[int, str]]] = {player.name: [] for player in players}
        """What all players were shown of a player's role, at a death or by the player."""
        self._actions: dict[tuple[str, int], str] = {}
        names = [player.name for player in players]
        for moment, event in enumerate(events):
            if event.kind in (EventKind.DEATH, EventKind.REVEALED) and event.data["role"] != UNKNOWN_ROLE:
                self._shown[event.text("player")].append((moment, event.text("role").lower()))
            for seat in event.audience or ():
                self._enter(moment, event, names[seat])

    def _enter(self, moment: int, event: Event, name: str) -> None:
        if event.kind in (EventKind.ROLE_CARD, EventKind.CONVERTED):
            self._held[name].append(_Held(moment, event.text("role"), event))
        elif event.notice.is_learned:
            self._learned[name].append((moment, event))
        elif event.kind is EventKind.ACTION_CHOSEN:
            self._actions[name, event.day] = event.text("verb")

    def role_at(self, name: str, moment: int) -> Role:
        """The role a player held at a moment."""
        held = [held.role for held in self._held[name] if held.since < moment]
        return ROLES[held[-1].lower() if held else self._dealt[name]]

    def roles_until(self, name: str, moment: int) -> set[str]:
        """The names of all roles a player had held by a moment."""
        return {held.role for held in self._held[name] if held.since < moment}

    def learned(self, name: str, moment: int) -> list[Event]:
        """What a player had learned by a moment."""
        return [event for since, event in self._learned[name] if since < moment]

    def known_role(self, name: str, about: str, moment: int) -> Role | None:
        """The role that a player knew another to hold, right or wrong; None when they did not know.

        They know their own team, what they learned exactly, and what all were shown.
        """
        own, other = self.role_at(name, moment), self.role_at(about, moment)
        if own.faction in TEAMS and own.faction is other.faction:
            return other
        learned = [role for event in self.learned(name, moment) if (role := _exact_role(event, about)) is not None]
        shown = [ROLES[role] for since, role in self._shown[about] if since < moment]
        known = learned or shown
        return known[-1] if known else None

    def changes(self) -> list[record.RoleChange]:
        """Every change of role in order: the player, both roles, when and why."""
        found: list[tuple[int, record.RoleChange]] = []
        for name, held in self._held.items():
            before = ROLES[self._dealt[name]].name
            for now in held:
                if now.role != before:
                    change = record.RoleChange(
                        day=now.event.day,
                        phase=now.event.phase,
                        player=name,
                        was=before,
                        now=now.role,
                        why=self._why(name, before, now),
                    )
                    found.append((now.since, change))
                before = now.role
        return [change for _, change in sorted(found, key=lambda entry: entry[0])]

    def _why(self, name: str, before: str, now: _Held) -> str:
        if now.event.kind is EventKind.ROLE_CARD:
            return "there was no target to be had"
        old, new = ROLES[before.lower()], ROLES[now.role.lower()]
        verb = self._actions.get((name, now.event.day))
        chosen = (
            ability.becomes for ability in old.abilities if isinstance(ability, NightAbility) and ability.verb == verb
        )
        return next(chosen, "") or new.turns_others or old.may_become.get(new.id, "unknown")


def _exact_role(event: Event, about: str) -> Role | None:
    """The one role that a finding says a player holds."""
    if event.notice.says is Says.ROLES and event.data["target"] == about:
        return ROLES[event.text("role").lower()]
    if event.kind is not RESULT or event.data["about"] != about:
        return None
    name = event.text("finding").partition(" ")[2]
    role = ROLES.get(name.lower())
    return role if role is not None and event.text("finding") == with_article(role.name) else None
