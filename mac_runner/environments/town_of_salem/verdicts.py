"""What players claimed, aloud or in writing, and whether they said what they knew: who held which role when, and what
each had learned.

A verdict is about honesty, not about luck: it compares the words with what the speaker knew when they said them.

- the speaker's own role and side: by the role they hold (`I was …`: or have held);
- a result: honest if the speaker learned exactly that of that player; a lie if they learned nothing of them or
  something that contradicts it; unclear if they learned something of another kind that may have led to the claim;
- what another player is: by the role that the speaker knew them to hold: as one of their own team, by an exact finding,
  or as shown to all. Who did not know has an opinion, which is unclear; honest where a finding of theirs supports it.

Apart from that a claim is so or not. What is honest or unclear, and not so, has the truth beside it.

A moment is a place in the list of events; it follows all events before that place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

from mac_runner.environments.town_of_salem import record
from mac_runner.environments.town_of_salem.claims import Claim, ClaimKind, Says, extract
from mac_runner.environments.town_of_salem.model.events import (
    A_VAMPIRE,
    MAFIA_MEMBER,
    NOT_A_VAMPIRE,
    NOT_SUSPICIOUS,
    RESULT,
    SUSPICIOUS,
    UNKNOWN_ROLE,
    Event,
    EventKind,
    visitors_in,
    with_article,
)
from mac_runner.environments.town_of_salem.model.role import NightState
from mac_runner.environments.town_of_salem.model.state import LYNCH, TEAMS, Faction, Phase, Player
from mac_runner.environments.town_of_salem.record import Verdict
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility, Role
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.rules.acts import Act


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


def night_of_death(event: Event, nights: Mapping[int, NightState]) -> NightState | None:
    """The night in which the player of a death event died; None for a lynch."""
    return None if event.data["causes"] == [LYNCH.name] else nights.get(event.day - 1)


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


def spoken(said: Iterable[tuple[Act, int]], events: Sequence[Event], names: Sequence[str]) -> Iterator[Utterance]:
    """The words that players said aloud, in whispers and in the chats of the night.

    Each act is `said` with the place in the list of events where its own events begin.
    """
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


_VERDICTS: Mapping[bool | None, Verdict] = MappingProxyType(
    {True: Verdict.HONEST, False: Verdict.LIE, None: Verdict.UNCLEAR}
)


def judged_claims(
    utterances: Iterable[Utterance], players: tuple[str, ...], history: RoleHistory
) -> list[record.Claim]:
    """Every claim in order, weighed against what its speaker knew when it was made, and against the truth."""
    ordered = sorted(utterances, key=lambda utterance: utterance.event)
    return [_judged(claim, said, history) for said in ordered for claim in extract(said.text, players)]


def _judged(claim: Claim, said: Utterance, history: RoleHistory) -> record.Claim:
    about = claim.about or said.player
    role = history.role_at(about, said.event)
    is_so = _is_so(claim, said, role, history)
    if claim.kind is ClaimKind.RESULT:
        is_sincere = _is_result(claim, said, history)
    elif about == said.player:
        is_sincere = is_so
    else:
        is_sincere = _is_as_known(claim, said, history)
    is_error = is_so is False and is_sincere is not False
    return record.Claim(
        event=said.event,
        day=said.day,
        phase=said.phase,
        player=said.player,
        channel=said.channel,
        kind=claim.kind,
        about=about,
        says=claim.says,
        roles=[*claim.roles],
        names=[*claim.names] if claim.says is Says.VISITED_BY else None,
        start=claim.start,
        end=claim.end,
        verdict=_VERDICTS[is_sincere],
        is_so=is_so,
        truth=f"{about} is the {role.name}" if is_error else "",
    )


def _is_so(claim: Claim, said: Utterance, role: Role, history: RoleHistory) -> bool | None:
    """Whether the player it is about was what is said; None when roles do not decide that."""
    if claim.says is Says.WAS_ROLE:
        return claim.roles[0] in history.roles_until(said.player, said.event)
    if claim.says is Says.ROLES:
        # The result may be older than a change of role.
        return not history.roles_until(claim.about, said.event).isdisjoint(claim.roles)
    return fits(claim, role)


def fits(claim: Claim, role: Role) -> bool | None:
    """Whether what a claim says of a player, or makes of them, is so for a role; None when roles do not decide that."""
    match claim.says:
        case Says.ROLE | Says.WAS_ROLE | Says.ROLES:
            return role.name in claim.roles
        case Says.MAFIA | Says.NOT_MAFIA:
            return (role.faction is Faction.MAFIA) == (claim.says is Says.MAFIA)
        case Says.TOWN | Says.NOT_TOWN:
            return (role.faction is Faction.TOWN) == (claim.says is Says.TOWN)
        case Says.VAMPIRE | Says.NOT_VAMPIRE:
            return (role.faction is Faction.VAMPIRE) == (claim.says is Says.VAMPIRE)
        case Says.EVIL | Says.SUSPICIOUS | Says.NOT_EVIL | Says.NOT_SUSPICIOUS:
            opposes = opposes_town(role)
            return None if opposes is None else opposes == claim.is_against
        case _:
            return None


def _is_as_known(claim: Claim, said: Utterance, history: RoleHistory) -> bool | None:
    """Whether words about another player say what the speaker knew; None when they did not know."""
    known = history.known_role(said.player, claim.about, said.event)
    if known is not None:
        return fits(claim, known)
    own = history.role_at(said.player, said.event).faction
    if own in TEAMS and _sides_named(claim) == {own}:
        # A team knows who is not of it.
        return claim.says is Says.NOT_MAFIA
    supports = [
        finding in _suspicions()
        for event in history.learned(said.player, said.event)
        if event.kind is RESULT and event.data["about"] == claim.about
        if (finding := event.text("finding")) in _suspicions() or finding == NOT_SUSPICIOUS
    ]
    return True if supports and supports[-1] == claim.is_against else None


def _sides_named(claim: Claim) -> set[Faction]:
    if claim.says in (Says.MAFIA, Says.NOT_MAFIA):
        return {Faction.MAFIA}
    return {ROLES[role.lower()].faction for role in claim.roles}


def opposes_town(role: Role) -> bool | None:
    """Whether a role can only win without the Town; None for roles that neither belong to it nor oppose it."""
    if role.faction is Faction.TOWN:
        return False
    return True if role.group is not None or role.is_hostile_to_town else None


def _is_result(claim: Claim, said: Utterance, history: RoleHistory) -> bool | None:
    learned = history.learned(said.player, said.event)
    if not claim.about:
        return any(event.notice.says is claim.says and not event.notice.is_finding for event in learned)
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
    data, notice = event.data, event.notice
    if notice is RESULT:
        return _is_finding(claim, event.text("finding")) if data["about"] == claim.about else None
    if not notice.is_finding or notice.says is not claim.says:
        return None
    if claim.says is Says.ROLES:
        return claim.roles == (data["role"],)
    return all(_mentions(event, name) for name in claim.names)


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
