"""FIXME Everything players said and left written, with who it really was: chats and wills do not always tell.

What players claimed, and whether it was so.

The rule of the verdict, by what is claimed, at the moment it was said:

- a role of one's own: true if the speaker holds it (`I was …`: or has held it), else false;
- a result: true if the speaker was told exactly that of that player; false if nothing was told of them or what was told
  contradicts it; undecidable if what was told is of another kind, from which it may have been concluded;
- that somebody holds a role, is of the Mafia or of the Town, or is not: by the role they hold;
- any other accusation or defence (`suspicious`, `innocent`, `lynch them`): by whether their role opposes the Town: of
  the Mafia, a Vampire, a neutral killer, a Witch. Undecidable for those who neither belong to the Town nor
  oppose it.
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
from mac_runner.environments.town_of_salem.record.role_history import Lives
from mac_runner.environments.town_of_salem.roles import ROLES, Role, follows_roles
from mac_runner.types import JsonObject, JsonValue


class Said(NamedTuple):
    """An act, and the place in the list of events at which what it brought about begins."""

    act: Act
    moment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Utterance:
    """Words of one player. `event` is the place of the event that holds them, in which they are found.

    `channel` is public, whisper, the name of a night channel, will or death note.
    """

    event: int
    day: int
    phase: Phase
    player: str
    channel: str
    text: str


def spoken(said: Iterable[Said], events: Sequence[Event], names: Sequence[str]) -> Iterator[Utterance]:
    """What was said aloud, whispered and said in the chats of the night."""
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
    """What was read out of wills and death notes, by who wrote it: a forged will is its Forger's."""
    for place, event in enumerate(events):
        if event.kind is not EventKind.DEATH:
            continue
        seat = names.index(event.text("player"))
        is_lynch = event.data["causes"] == ["lynch"]
        night = None if is_lynch else nights.get(event.day - 1)
        notes = event.data["death_notes"] if isinstance(event.data["death_notes"], list) else []
        left = [("will", event.text("will"), _will_writer(night, seat))]
        left += [("death note", str(note), _note_writer(night, seat, str(note))) for note in notes]
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


def claims_told(utterances: Iterable[Utterance], players: tuple[str, ...], lives: Lives) -> list[JsonValue]:
    """Every claim in the order in which they were made, each with where it stands and its verdict."""
    ordered = sorted(utterances, key=lambda utterance: utterance.event)
    return [_told(claim, said, lives) for said in ordered for claim in extract(said.text, players)]


def _told(claim: Claim, said: Utterance, lives: Lives) -> JsonObject:
    told: JsonObject = {
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
        told["roles"] = list(claim.roles)
    if claim.says is Says.VISITED_BY:
        told["names"] = list(claim.names)
    return {**told, "start": claim.start, "end": claim.end, "verdict": _VERDICTS[verdict(claim, said, lives)]}


def verdict(claim: Claim, said: Utterance, lives: Lives) -> bool | None:
    """Whether a claim was true when it was made; None when that cannot be decided."""
    if claim.kind is ClaimKind.RESULT:
        return _is_result(claim, said, lives)
    role = lives.role_at(claim.about or said.player, said.event)
    match claim.says:
        case Says.WAS_ROLE:
            return claim.roles[0] in lives.roles_until(said.player, said.event)
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
    """Whether a role can only win without the Town; None for those who neither belong to it nor oppose it."""
    if role.faction is Faction.TOWN:
        return False
    return True if role.group is not None or role.is_hostile_to_town else None


def _is_result(claim: Claim, said: Utterance, lives: Lives) -> bool | None:
    learned = lives.learned(said.player, said.event)
    if not claim.about:
        return any(event.kind in _BEFELL.get(claim.says, ()) for event in learned)
    about = [event for event in learned if _tells_of(event, claim.about)]
    answers = [_answers(claim, event) for event in about]
    if True in answers:
        return True
    return None if None in answers else False


def _tells_of(event: Event, name: str) -> bool:
    """Whether a seat learned anything of `name` from an event."""
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(value)) for value in event.data.values())


def _answers(claim: Claim, event: Event) -> bool | None:
    """Whether one thing that was told says what is claimed, contradicts it, or neither (None)."""
    data, says = event.data, claim.says
    match event.kind:
        case EventKind.PATIENT_ATTACKED:
            return True if says is Says.ATTACKED else None
        case EventKind.BUGGED:
            kinds = {kind.value for kind in _BEFELL.get(says, ())}
            return True if data["happened"] in kinds else None
        case EventKind.MAFIA_VISITS:
            return True if says is Says.VISITED_BY_MAFIA else None
        case EventKind.CLEANED:
            return claim.roles == (data["role"],) if says is Says.ROLES else None
        case EventKind.RESULT if data["about"] == claim.about:
            return _is_finding(claim, str(data["finding"]))
        case _:
            return None


@follows_roles
@cache
def _sheriffs() -> frozenset[str]:
    """What a Sheriff finds of somebody suspicious."""
    named = (f"a {role.name.lower()}" for role in ROLES.values() if role.suspicious_when is not None)
    return frozenset({"suspicious", "a member of the mafia", *named})


def _is_finding(claim: Claim, finding: str) -> bool | None:
    is_sheriffs = finding in _sheriffs() or finding == "not suspicious"
    is_visits = finding.startswith("visited by ")
    match claim.says:
        case Says.SUSPICIOUS | Says.NOT_SUSPICIOUS if is_sheriffs:
            return (finding in _sheriffs()) == (claim.says is Says.SUSPICIOUS)
        case Says.MAFIA if is_sheriffs:
            return True if finding == "a member of the mafia" else None if finding == "suspicious" else False
        case Says.VAMPIRE | Says.NOT_VAMPIRE if finding in ("a Vampire", "not a Vampire"):
            return finding == f"{'a' if claim.says is Says.VAMPIRE else 'not a'} Vampire"
        case Says.VISITED_BY if is_visits:
            seen = set(finding.removeprefix("visited by ").split(" and ")) - {"nobody"}
            return set(claim.names) <= seen if claim.names else not seen
        case Says.ROLES if not is_sheriffs and not is_visits and finding != "not a Vampire":
            return _is_list(set(claim.roles), finding)
        case _:
            return None


def _is_list(claimed: set[str], finding: str) -> bool | None:
    """Whether the roles claimed are those that were named; who says less than they know may be right."""
    named = {role.name for role in ROLES.values() if re.search(rf"\b{role.name}\b", finding)}
    if "Vampire Hunter" in named:
        # One word of the two is a role as well; no list has both.
        named.discard("Vampire")
    if claimed == named:
        return True
    return None if claimed < named else False
