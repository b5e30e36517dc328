"""Events told in words. One line each; what players wrote is defused, so that it can only ever be what they wrote."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mac_runner.environments.markup import defuse
from mac_runner.environments.town_of_salem.game.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.game.state import LYNCH, Phase
from mac_runner.environments.town_of_salem.roles import ROLES, follows_roles
from mac_runner.environments.town_of_salem.roles.base import with_article
from mac_runner.types import JsonObject


@follows_roles
@cache
def _causes() -> Mapping[str, str]:
    """How the announcement of a death puts each cause."""
    return {cause.name: cause.line for cause in (LYNCH, *(cause for role in ROLES.values() for cause in role.causes))}


def stamp(event: Event) -> str:
    """When the event happened: `Day 2, voting`, `Night 3`."""
    if event.phase.is_night:
        return f"Night {event.day}"
    return f"Day {event.day}" if event.phase is Phase.OVER else f"Day {event.day}, {event.phase}"


def line(event: Event) -> str:
    """The event as one line of the record."""
    return f"[{stamp(event)}] {tell(event)}"


def tell(event: Event) -> str:
    """The event in words."""
    return _WORDS[event.kind].format_map(_Told(event.data))


class _Told(dict[str, str]):
    """The data of an event as a sentence wants it: lists joined, players' own words defused."""

    def __init__(self, data: JsonObject) -> None:
        super().__init__({key: _told(value) for key, value in data.items()})
        self["count_of"] = f"{data.get('count')} of {data.get('needed')}"
        if "verb" in data:
            verb = str(data["verb"]).replace("_", " ")
            self["deed"] = f"{verb}: {self['targets']}" if data["targets"] else verb
        if data.get("role"):
            self["a_role"] = with_article(str(data["role"]))
        if "legacy" in data:
            self["legacy"] = f"The will read: “{self['legacy']}”" if data["legacy"] else "There was no will."
        if "target" in data:
            self["attacked"] = self["target"] or "Somebody you met"
        if "happened" in data:
            self["heard"] = _HEARD[EventKind(str(data["happened"]))]
        if "is_cautious" in data:
            self["caution"] = _CAUTIOUS if data["is_cautious"] else _INCAUTIOUS
        if "finding" in data:
            # The visits of a night are over; what somebody is, they are still.
            self["found"] = f"{'was' if self['finding'].startswith('visited') else 'is'} {self['finding']}"
        if "causes" in data:
            self["death"] = _death(data)
        if "is_guilty" in data:
            self["verdict"] = "guilty and will be lynched" if data["is_guilty"] else "acquitted"
        if "ending" in data:
            self["end"] = _ending(data)


def _told(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "nobody"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({role})" for name, role in value.items())
    return defuse(str(value))


def _death(data: JsonObject) -> str:
    causes = data["causes"] if isinstance(data["causes"], list) else []
    notes = data["death_notes"] if isinstance(data["death_notes"], list) else []
    how = " and ".join(_causes()[str(cause)] for cause in causes)
    will = f"The will reads: “{defuse(str(data['will']))}”" if data["will"] else "There was no will."
    if data.get("is_bloody"):
        will = "The will is soaked in blood and cannot be read."
    left = "".join(f" A note was left: “{defuse(str(note))}”" for note in notes)
    if data["role"] == UNKNOWN_ROLE:
        return f"{data['player']} died, {how}. The body was cleaned: neither role nor will is known."
    return f"{data['player']} died, {how}. They were {with_article(str(data['role']))}. {will}{left}"


def _ending(data: JsonObject) -> str:
    winners = data["winners"] if isinstance(data["winners"], list) else []
    who = " and ".join(f"the {str(winner).title()}" for winner in winners)
    match data["ending"]:
        case "win":
            return f"The game is over: {who} won, for {data['reason']}."
        case "draw":
            return f"The game is over: a draw, for {data['reason']}."
        case _:
            return f"The game was stopped: {data['reason']}."


_CAUTIOUS = "From now on you leave alone those who block or jail you."
_INCAUTIOUS = "From now on you kill those who block or jail you."

_HEARD = {
    EventKind.ATTACKED: "they were attacked and survived",
    EventKind.BLOCKED: "they were kept busy",
    EventKind.BLOCK_RESISTED: "somebody tried to block them, in vain",
    EventKind.CONTROLLED: "they were controlled",
    EventKind.CONTROL_RESISTED: "somebody tried to control them, in vain",
    EventKind.TRANSPORTED: "they were moved",
    EventKind.DOUSED: "they were doused",
    EventKind.BLACKMAILED: "they were blackmailed",
    EventKind.PATIENT_ATTACKED: "their patient was attacked",
}

_WORDS: dict[EventKind, str] = {
    EventKind.GAME_START: "Players, in seat order: {players}. Roles in this game: {lobby}.",
    EventKind.DAY_START: "The sun rises.",
    EventKind.NIGHT_START: "Night falls.",
    EventKind.VOTING_START: "Voting opens: {needed} votes on a player start a trial; trials left today: {trials_left}.",
    EventKind.SPEECH: "{player} says: “{text}”",
    EventKind.WHISPER_SEEN: "{player} whispers to {to}.",
    EventKind.VOTE: "{player} votes for {target} ({count_of}).",
    EventKind.UNVOTE: "{player} takes back the vote for {target}.",
    EventKind.TRIAL: "{accused} is put on trial (trial {trial} of the day).",
    EventKind.BALLOTS: "Ballots: guilty: {guilty}; innocent: {innocent}; abstained: {abstain}.",
    EventKind.VERDICT: "{accused} is {verdict}.",
    EventKind.DEATH: "{death}",
    EventKind.NO_DEATH: "Nobody died last night.",
    EventKind.FULL_MOON: "The moon is full.",
    EventKind.BLACKMAILED_ON_STAND: "{accused} is blackmailed and cannot speak.",
    EventKind.REVEALED: "{player} shows that they are the {role}.",
    EventKind.REMEMBERED: "An Amnesiac has remembered who they were: {a_role}.",
    EventKind.REVIVED: "{player} is back from the dead.",
    EventKind.GAME_END: "{end}",
    EventKind.ROLE_CARD: "You are the {role}.",
    EventKind.TEAM: "{team}: {members}.",
    EventKind.QUARRY: "Your target is {target}.",
    EventKind.WHISPER: "{player} whispers to {to}: “{text}”",
    EventKind.CHAT: "({channel} chat) {player}: “{text}”",
    EventKind.JAIL_CHOSEN: "You will jail {target} tonight.",
    EventKind.JAILED: "You are in jail. You cannot act tonight; you can talk with the Jailor.",
    EventKind.JAILING: "You have {prisoner} in jail.",
    EventKind.TEAMMATE_JAILED: "{player} of your team is in jail tonight.",
    EventKind.SEANCE_CHOSEN: "You will talk with {target} tonight.",
    EventKind.SEANCE: "The Medium, who is dead, talks with you tonight.",
    EventKind.DEED_CHOSEN: "You chose to {deed}.",
    EventKind.HAUNT_OFFERED: "You may haunt one of: {candidates}.",
    EventKind.BLOCKED: "Somebody kept you busy: if you chose to do something tonight, it did not happen.",
    EventKind.BLOCK_FAILED: "{target} could not be blocked.",
    EventKind.BLOCK_RESISTED: "Somebody tried to block you, in vain.",
    EventKind.TARGET_JAILED: "{target} was in jail: what you chose did not happen.",
    EventKind.RESULT: "You found that {about} {found}.",
    EventKind.ATTACKED: "You were attacked, and {saved_by} saved you.",
    EventKind.PATIENT_ATTACKED: "Your patient {target} was attacked.",
    EventKind.DEFENCE_TOO_STRONG: "{attacked} was too well defended against your attack.",
    EventKind.EXECUTIONS_LOST: "{target} was of the Town: you may execute no more.",
    EventKind.GOAL_MET: "You have reached your goal: you have won.",
    EventKind.CONVERTED: "You are now a {role}.",
    EventKind.TEAM_CHANGED: "{player} is now the {role} of the Mafia.",
    EventKind.TEAM_JOINED: "{player} is now one of you, {a_role}.",
    EventKind.FAILED: "What you did had no effect on {target}.",
    EventKind.CONTROLLED: "Somebody made you do what they wanted.",
    EventKind.CONTROL_FAILED: "{target} could not be controlled.",
    EventKind.CONTROL_RESISTED: "Somebody tried to control you, in vain.",
    EventKind.TRANSPORTED: "You were moved to another place tonight.",
    EventKind.DOUSED: "You were doused.",
    EventKind.VISITED: "You doused those who came to you: {visitors}.",
    EventKind.BLACKMAILED: "You are blackmailed: tomorrow you cannot speak by day.",
    EventKind.GUILT: "You killed one of your own, {target}. The next night will be your last.",
    EventKind.CLEANED: "You cleaned {target}, who was {a_role}. {legacy}",
    EventKind.MAFIA_VISITS: "The Mafia visited: {visited}.",
    EventKind.BUGGED: "Your bug on {target}: {heard}.",
    EventKind.CAUTION: "{caution}",
}
