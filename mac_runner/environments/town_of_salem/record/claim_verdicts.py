"""What players claimed, aloud or in writing, and whether it was true when they said it.

The verdict depends on what is claimed:

- the speaker's own role: true if they hold it (`I was …`: or have held it), else false;
- a result: true if the speaker learned exactly that of that player; false if they learned nothing of them or something
  that contradicts it; undecidable if they learned something of another kind that may have led to the claim;
- that a player holds a role, is of the Mafia or of the Town, or is not: by the role they hold;
- any other accusation or defence (`suspicious`, `innocent`, `lynch them`): by whether their role opposes the Town
  (`opposes_town`); undecidable for roles that neither belong to the Town nor oppose it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, Says, extract
from mac_runner.environments.town_of_salem.game.acts import Act
from mac_runner.environments.town_of_salem.game.events import Event, EventKind
from mac_runner.environments.town_of_salem.game.state import Faction, Phase
from mac_runner.environments.town_of_salem.night.state import NightState
from mac_runner.environments.town_of_salem.record.nights import night_of_death
from mac_runner.environments.town_of_salem.record.role_history import RoleHistory
from mac_runner.environments.town_of_salem.roles import ROLES, Role
from mac_runner.environments.town_of_salem.roles.base import (
    A_VAMPIRE,
    MAFIA_MEMBER,
    NOT_A_VAMPIRE,
    NOT_SUSPICIOUS,
    SUSPICIOUS,
    visitors_in,
)
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.types import JsonObject, JsonValue


class Said(NamedTuple):
    """An act, and the place in the list of events where its own events begin."""

    act: Act
    moment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """Words of one player."""

    event: int
    """The place of the event that holds them."""
    day: int
    phase: Phase
    player: str
    """The real speaker or writer; chats and wills may go by another name."""
    channel: str
    """public, whisper, the name of a night channel, will or death note."""
    text: str


def spoken(said: Iterable[Said], events: Sequence[Event], names: Sequence[str]) -> Iterator[Utterance]:
    """The words that players said aloud, in whispers and in the chats of the night."""
    for act, moment in said:
        if act.verb not in ("speak", "whisper"):
            continue
        place = next(i for i in range(moment, len(events)) if events[i].data.get("text") == act.text)
        event = events[place]
        yield Utterance(
            event=place,
            day=event.day,
            phase=event.phase,
            player=names[act.seat],
            channel=_channel(event),
            text=act.text,
        )


def _channel(event: Event) -> str:
    if event.kind is EventKind.CHAT:
        return event.text("channel")
    return "whisper" if event.kind is EventKind.WHISPER else "public"


def written(events: Sequence[Event], nights: Mapping[int, NightState], names: Sequence[str]) -> Iterator[Utterance]:
    """The wills and death notes that were read out, by their writers: a forged will is its forger's."""
    for place, event in enumerate(events):
        if event.kind is not EventKind.DEATH:
            continue
        seat = names.index(event.text("player"))
        night = night_of_death(event, nights)
        left = [("will", event.text("will"), _will_writer(night, seat))]
        left += [("death note", note, _note_writer(night, seat, note)) for note in event.names("death_notes")]
        for channel, text, writer in left:
            if text:
                yield Utterance(
                    event=place,
                    day=event.day,
                    phase=event.phase,
                    player=names[writer],
                    channel=channel,
                    text=text,
                )


def _will_writer(night: NightState | None, dead: int) -> int:
    death = None if night is None else night.player(dead).death
    if night is None or death is None or death.forged_will is None:
        return dead
    forgers = (
        action.seat for action in night.actions if action.text == death.forged_will and night.house(action) == dead
    )
    return next(forgers, dead)


def _note_writer(night: NightState | None, dead: int, note: str) -> int:
    attacks = [] if night is None else night.fatal.get(dead, [])
    killers = (attack.attacker for attack in attacks if night and night.player(attack.attacker).death_note == note)
    return next(killers, dead)


_VERDICTS: Mapping[bool | None, str] = MappingProxyType({True: "true", False: "false", None: "undecidable"})
_BEFELL: Mapping[Says, tuple[EventKind, ...]] = MappingProxyType(
    {
        Says.ATTACKED: (EventKind.ATTACKED,),
        Says.BLOCKED: (EventKind.BLOCKED, EventKind.BLOCK_RESISTED),
        Says.CONTROLLED: (EventKind.CONTROLLED, EventKind.CONTROL_RESISTED),
        Says.TRANSPORTED: (EventKind.TRANSPORTED,),
        Says.DOUSED: (EventKind.DOUSED,),
        Says.JAILED: (EventKind.JAILED,),
        Says.BLACKMAILED: (EventKind.BLACKMAILED,),
    }
)


def claim_rows(utterances: Iterable[Utterance], players: tuple[str, ...], history: RoleHistory) -> list[JsonValue]:
    """Every claim in order, with its place in the words and its verdict."""
    ordered = sorted(utterances, key=lambda utterance: utterance.event)
    return [_row(claim, said, history) for said in ordered for claim in extract(said.text, players)]


def _row(claim: Claim, said: Utterance, history: RoleHistory) -> JsonObject:
    row: JsonObject = {
        "event": said.event,
        "day": said.day,
        "phase": said.phase.value,
        "player": said.player,
        "channel": said.channel,
        "kind": claim.kind.value,
        "about": claim.about or said.player,
        "says": claim.says.value,
    }
    if claim.roles:
        row["roles"] = list(claim.roles)
    if claim.says is Says.VISITED_BY:
        row["names"] = list(claim.names)
    return {**row, "start": claim.start, "end": claim.end, "verdict": _VERDICTS[verdict(claim, said, history)]}


def verdict(claim: Claim, said: Utterance, history: RoleHistory) -> bool | None:
    """Whether a claim was true when it was made; None when that cannot be decided."""
    if claim.kind is ClaimKind.RESULT:
        return _is_result(claim, said, history)
    role = history.role_at(claim.about or said.player, said.event)
    match claim.says:
        case Says.WAS_ROLE:
            return claim.roles[0] in history.roles_until(said.player, said.event)
        case Says.ROLE:
            return role.name in claim.roles
        case Says.MAFIA | Says.NOT_MAFIA:
            return (role.faction is Faction.MAFIA) == (claim.says is Says.MAFIA)
        case Says.TOWN | Says.NOT_TOWN:
            return (role.faction is Faction.TOWN) == (claim.says is Says.TOWN)
        case _:
            opposes = opposes_town(role)
            return None if opposes is None else opposes == (claim.kind is ClaimKind.ACCUSATION)


def opposes_town(role: Role) -> bool | None:
    """Whether a role can only win without the Town; None for roles that neither belong to it nor oppose it."""
    if role.faction is Faction.TOWN:
        return False
    return True if role.group is not None or role.is_hostile_to_town else None


def _is_result(claim: Claim, said: Utterance, history: RoleHistory) -> bool | None:
    learned = history.learned(said.player, said.event)
    if not claim.about:
        return any(event.kind in _BEFELL.get(claim.says, ()) for event in learned)
    about = [event for event in learned if _mentions(event, claim.about)]
    answers = [_answers(claim, event) for event in about]
    if True in answers:
        return True
    return None if None in answers else False


def _mentions(event: Event, name: str) -> bool:
    """Whether an event mentions a player."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(value)) for value in event.data.values())


def _answers(claim: Claim, event: Event) -> bool | None:
    """Whether one thing learned confirms the claim, contradicts it, or neither (None)."""
    data, says = event.data, claim.says
    match event.kind:
        case EventKind.PATIENT_ATTACKED:
            return True if says is Says.ATTACKED else None
        case EventKind.BUGGED:
            return True if data["happened"] in _BEFELL.get(says, ()) else None
        case EventKind.MAFIA_VISITS:
            return True if says is Says.VISITED_BY_MAFIA else None
        case EventKind.CLEANED:
            return claim.roles == (data["role"],) if says is Says.ROLES else None
        case EventKind.RESULT if data["about"] == claim.about:
            return _is_finding(claim, event.text("finding"))
        case _:
            return None


@follows_roles
@cache
def _suspicions() -> frozenset[str]:
    """The findings of a role that looks for suspicious players."""
    named = (f"a {role.name.lower()}" for role in ROLES.values() if role.suspicious_when is not None)
    return frozenset({SUSPICIOUS, MAFIA_MEMBER, *named})


def _is_finding(claim: Claim, finding: str) -> bool | None:
    is_suspicion = finding in _suspicions() or finding == NOT_SUSPICIOUS
    visitors = visitors_in(finding)
    match claim.says:
        case Says.SUSPICIOUS | Says.NOT_SUSPICIOUS if is_suspicion:
            return (finding in _suspicions()) == (claim.says is Says.SUSPICIOUS)
        case Says.MAFIA if is_suspicion:
            return True if finding == MAFIA_MEMBER else None if finding == SUSPICIOUS else False
        case Says.VAMPIRE | Says.NOT_VAMPIRE if finding in (A_VAMPIRE, NOT_A_VAMPIRE):
            return (finding == A_VAMPIRE) == (claim.says is Says.VAMPIRE)
        case Says.VISITED_BY if visitors is not None:
            return set(claim.names) <= set(visitors) if claim.names else not visitors
        case Says.ROLES if not is_suspicion and visitors is None and finding != NOT_A_VAMPIRE:
            return _is_list(set(claim.roles), finding)
        case _:
            return None


def _is_list(claimed: set[str], finding: str) -> bool | None:
    """Whether the roles claimed are those of the finding; a claim of only some of them may be right."""
    # Longer names go first: one role's name may be part of another's.
    names = "|".join(sorted((role.name for role in ROLES.values()), key=len, reverse=True))
    named = set(re.findall(rf"\b(?:{names})\b", finding))
    if claimed == named:
        return True
    return None if claimed < named else False
