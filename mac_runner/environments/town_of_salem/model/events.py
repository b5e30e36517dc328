"""What happens in a game, and the players who learn of it.

An event carries its audience from the moment it is made. Its data holds nothing that this audience may not know: in
jail the keeper's words come from the role, not from the player. The data has names, never seat numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mac_runner.environments.town_of_salem.model.state import Faction, GameState, Phase, Player
from mac_runner.types import JsonObject, JsonValue


class EventKind(StrEnum):
    """Every kind of event; `view.texts` has one sentence for each."""

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
    """One thing that happened."""

    kind: EventKind
    day: int
    phase: Phase
    data: JsonObject
    audience: frozenset[int] | None = None
    """The seats that learn of it; None for all players."""

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

BEFALLS = frozenset(
    {
        EventKind.ATTACKED,
        EventKind.BLOCKED,
        EventKind.BLOCK_RESISTED,
        EventKind.CONTROLLED,
        EventKind.CONTROL_RESISTED,
        EventKind.TRANSPORTED,
        EventKind.DOUSED,
        EventKind.BLACKMAILED,
        EventKind.PATIENT_ATTACKED,
    }
)
"""What befalls a player at night."""
FINDINGS = frozenset(
    {
        EventKind.RESULT,
        EventKind.MAFIA_VISITS,
        EventKind.BUGGED,
        EventKind.PATIENT_ATTACKED,
        EventKind.VISITED,
        EventKind.CLEANED,
    }
)
"""What a player finds out at night by an ability."""

UNKNOWN_ROLE = "unknown"
"""The role shown for a body that was cleaned."""

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


def public(state: GameState, kind: EventKind, **data: JsonValue) -> Event:
    """An event that all players learn of."""
    return Event(kind=kind, day=state.day, phase=state.phase, data=data)


def private(state: GameState, kind: EventKind, seats: Iterable[int], **data: JsonValue) -> Event:
    """An event that only `seats` learn of."""
    return Event(kind=kind, day=state.day, phase=state.phase, data=data, audience=frozenset(seats))


def team_event(state: GameState, team: Sequence[Player], seats: Iterable[int] | None = None) -> Event:
    """An event that lists a team to its members, or to those of them at `seats`."""
    names: dict[str, JsonValue] = {player.name: player.role.title() for player in team}
    label = "The Vampires" if team[0].faction is Faction.VAMPIRE else "The Mafia"
    audience = (player.seat for player in team) if seats is None else seats
    return private(state, EventKind.TEAM, audience, team=label, members=names)
