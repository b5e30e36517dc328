"""What happens in a game and who learns of it.

An event carries its audience from the moment it is made, and its data holds nothing that audience may not know:
a prisoner's chat names its other speaker `Jailor`, not the player. Names, never seat numbers, stand in the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mac_runner.environments.town_of_salem.game.state import Faction, GameState, Phase, Player
from mac_runner.types import JsonObject, JsonValue


class EventKind(StrEnum):
    """Every kind of event; `narration` has one sentence for each."""

    # Everybody learns these.
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
    JAILED = "jailed"
    JAILING = "jailing"
    TEAMMATE_JAILED = "teammate_jailed"
    SEANCE_CHOSEN = "seance_chosen"
    SEANCE = "seance"
    ACTION_CHOSEN = "deed_chosen"
    HAUNT_OFFERED = "haunt_offered"
    BLOCKED = "blocked"
    BLOCK_FAILED = "block_failed"
    BLOCK_RESISTED = "block_resisted"
    TARGET_JAILED = "target_jailed"
    RESULT = "result"
    ATTACKED = "attacked"
    PATIENT_ATTACKED = "patient_attacked"
    DEFENCE_TOO_STRONG = "defence_too_strong"
    EXECUTIONS_LOST = "executions_lost"
    GOAL_MET = "goal_met"
    CONVERTED = "converted"
    TEAM_CHANGED = "team_changed"
    TEAM_JOINED = "team_joined"
    FAILED = "failed"
    CONTROLLED = "controlled"
    CONTROL_FAILED = "control_failed"
    CONTROL_RESISTED = "control_resisted"
    TRANSPORTED = "transported"
    DOUSED = "doused"
    VISITED = "visited"
    BLACKMAILED = "blackmailed"
    GUILT = "guilt"
    CLEANED = "cleaned"
    MAFIA_VISITS = "mafia_visits"
    BUGGED = "bugged"
    CAUTION = "caution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened; `audience` is None when everybody learns of it, else the seats that do."""

    kind: EventKind
    day: int
    phase: Phase
    data: JsonObject
    audience: frozenset[int] | None = None

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
        return [self.kind, self.day, self.phase, self.data, audience]


Events = tuple[Event, ...]

UNKNOWN_ROLE = "unknown"
"""Stands for the role of a body that was cleaned."""


def public(state: GameState, kind: EventKind, **data: JsonValue) -> Event:
    """An event everybody learns of."""
    return Event(kind=kind, day=state.day, phase=state.phase, data=data)


def private(state: GameState, kind: EventKind, seats: Iterable[int], **data: JsonValue) -> Event:
    """An event only `seats` learn of."""
    return Event(kind=kind, day=state.day, phase=state.phase, data=data, audience=frozenset(seats))


def team_event(state: GameState, team: Sequence[Player], seats: Iterable[int] | None = None) -> Event:
    """An event that tells the members of a team, or those of them at `seats`, who is in it."""
    names: dict[str, JsonValue] = {player.name: player.role.title() for player in team}
    label = "The Vampires" if team[0].faction is Faction.VAMPIRE else "The Mafia"
    told = (player.seat for player in team) if seats is None else seats
    return private(state, EventKind.TEAM, told, team=label, members=names)
