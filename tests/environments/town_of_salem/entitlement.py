"""Who may learn what, written down from the rules of the game alone: the knowledge matrix as a table.

Nothing here reads an audience, a channel, a role's hooks or what a seat was shown. It knows what the players chose,
what they were on that day, and from that says for each kind of private notice whether a seat may be told it, and
whether it may hold the names it holds. A condition is necessary, not sufficient: where a Transporter or a Witch was
about, whoever could have been meant counts as meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from mac_runner.environments.town_of_salem.testing import EventKind, Options, Player
from mac_runner.types import JsonObject
from tests.environments.town_of_salem.facts import ALL_ROLES, MAFIA, VAMPIRES, Day, Notice

KILLERS_BY_CAUSE: Mapping[str, frozenset[str]] = {
    "mafia": frozenset({"godfather", "mafioso"}),
    "guilt": frozenset({"vigilante"}),
    "guarding": frozenset({"godfather", "mafioso", "serial killer", "vigilante", "werewolf"}),
    **{role: frozenset({role}) for role in ("serial killer", "arsonist", "werewolf", "vigilante", "veteran", "jailor")},
}
"""Whose death notes are found with a body, by the cause of death."""

_ROLE = re.compile(rf"\b({'|'.join(sorted((role.title() for role in ALL_ROLES), key=len, reverse=True))})\b")
_VERBS = {
    "sheriff": "interrogate",
    "investigator": "investigate",
    "lookout": "watch",
    "consigliere": "look_into",
    "vampire hunter": "check",
    "spy": "bug",
    "escort": "block",
    "consort": "block",
    "doctor": "heal",
    "bodyguard": "guard",
    "vigilante": "shoot",
    "godfather": "kill",
    "mafioso": "kill",
    "serial killer": "stab",
    "werewolf": "rampage",
    "vampire": "bite",
    "arsonist": "douse",
    "blackmailer": "blackmail",
    "janitor": "clean",
    "amnesiac": "remember",
}
"""What a role does to one player at night."""
_KILLERS = frozenset({"shoot", "kill", "stab", "rampage", "bite", "check"})


def article(role: str) -> str:
    """The role as a finding names it."""
    return f"{'an' if role[0] in 'aeiou' else 'a'} {role.title()}"


Rule: TypeAlias = Callable[[Notice], bool]


def seats_that_hear(channel: str, players: Collection[Player], day: Day, options: Options) -> frozenset[int]:
    """Who may hear what is said in a night channel (rules, sections 7.1, 7.10, 8.1, 10, 15)."""
    free = {player.seat: player.role for player in players if player.alive and player.seat != day.prisoner}
    match channel:
        case "jail":
            assert day.keeper is not None
            assert day.prisoner is not None
            return frozenset({day.keeper, day.prisoner})
        case "mafia":
            spies = {"spy"} if options.spy == "ears" else set()
            return frozenset(seat for seat, role in free.items() if role in MAFIA | spies)
        case "vampire":
            return frozenset(seat for seat, role in free.items() if role in VAMPIRES | {"vampire hunter"})
        case "dead":
            return frozenset(player.seat for player in players if not player.alive or player.role == "medium")
        case _:
            assert channel == "seance"
            return frozenset(seat for pair in day.seances.items() for seat in pair)


def seats_that_read_whispers(players: Collection[Player], options: Options) -> frozenset[int]:
    """Who reads the whispers of others (rules, sections 5.9 and 7.8)."""
    readers = {"blackmailer", *({"spy"} if options.spy == "ears" else ())}
    return frozenset(player.seat for player in players if player.alive and player.role in readers)


def _finding(notice: Notice) -> bool:
    """A result belongs to who looked, names whom they aimed at, and is of the kind their role gets (7.5 to 7.11)."""
    about, finding = notice.about("about"), str(notice.data["finding"])
    mine = notice.day.chosen.get(notice.seat)
    if notice.is_one_of("witch") and mine is not None and mine.verb == "control":
        puppet = mine.targets[0]
        if about == puppet and finding in {article(role) for role in ALL_ROLES}:
            return True
    for looker in (notice.seat, *_puppets(notice)):
        roles = notice.day.held.get(looker, set())
        if any(_is_finding_of(role, finding, notice.options) for role in roles):
            verbs = {_VERBS[role] for role in roles if role in _VERBS}
            if about in notice.day.may_aim(looker, verbs):
                return True
    return False


def _puppets(notice: Notice) -> list[int]:
    """Whom the reader made act this night."""
    day = notice.day
    return [seat for seat in day.held if notice.seat in day.puppeteers(seat)]


def _is_finding_of(role: str, finding: str, options: Options) -> bool:
    match role:
        case "sheriff":
            answers = {"suspicious", "not suspicious"}
            if options.sheriff == "typed":
                answers = {"not suspicious", "a member of the mafia", "a serial killer", "a werewolf"}
            return finding in answers
        case "investigator":
            return finding.count(",") == 1 and finding.count(" or ") == 1
        case "lookout":
            return finding.startswith("visited by ")
        case "consigliere":
            return finding in {article(known) for known in ALL_ROLES}
        case "vampire hunter":
            return finding in ("a Vampire", "not a Vampire")
        case _:
            return False


def _own_aim(*verbs: str) -> Rule:
    """The player named is one the reader chose, or was made to choose: not whoever was found in their place."""
    return lambda notice: notice.about() in notice.day.may_aim(notice.seat, verbs)


def _may_be_hit(*verbs: str) -> Rule:
    """Something called so may have reached the reader."""
    return lambda notice: notice.seat in notice.day.may_hit(verbs)


def _is_one_of(*roles: str) -> Rule:
    return lambda notice: notice.is_one_of(*roles)


def _names_own_team(notice: Notice) -> bool:
    """Members of the reader's team and their roles, and nobody else's (rules, sections 8.1, 10, 15)."""
    members = notice.data["members"]
    assert isinstance(members, dict)
    return all(notice.has_teammate(notice.names.index(name)) for name in members)


def _defence(notice: Notice) -> bool:
    """An attacker learns that the one they chose was too strong; of others they met, not who it was."""
    if not notice.data["target"]:
        return notice.is_one_of("serial killer", "werewolf", "veteran", "bodyguard", "jailor", "vampire hunter")
    return notice.about() in notice.day.may_aim(notice.seat, _KILLERS) | _orders(notice)


def _orders(notice: Notice) -> set[int]:
    """Where the reader's team may send the one who carries out its kill or its bite."""
    team = next((team for team in (MAFIA, VAMPIRES) if notice.is_one_of(*team)), ())
    comrades = (seat for seat in notice.day.held if notice.day.is_one_of(seat, team))
    return set[int]().union(*(notice.day.may_aim(seat, {"kill", "bite"}) for seat in comrades))


def _own_deed(notice: Notice) -> bool:
    mine = notice.day.chosen.get(notice.seat)
    if mine is None:
        return False
    return (notice.data["verb"], notice.data["targets"]) == (mine.verb, [notice.names[seat] for seat in mine.targets])


def _jailed_aim(notice: Notice) -> bool:
    """That somebody is in jail those learn who set out for them."""
    mine = notice.day.chosen.get(notice.seat)
    verbs = set() if mine is None else {mine.verb}
    return notice.about() in notice.day.may_aim(notice.seat, verbs) | _orders(notice)


def _attacked(notice: Notice) -> bool:
    """The attacked learn what saved them and not who came; only who stays at home and is nobody's aim is safe."""
    day, seat = notice.day, notice.seat
    is_met = seat in day.may_hit({*_KILLERS, "guard"}) or seat in day.chosen or seat == day.keeper
    return is_met and notice.data["saved_by"] in ("a Doctor", "a Bodyguard", "your own defence")


def _team_news(notice: Notice) -> bool:
    return notice.has_teammate(notice.about("player")) and notice.about("player") != notice.seat


_STRANGERS = {"mafia": "A member of the Mafia", "vampire": "A Vampire"}


def _speaker(notice: Notice) -> bool:
    """Under which name somebody is heard; who hears the words is settled by their markers (7.1, 7.10, 10)."""
    player, day = str(notice.data["player"]), notice.day
    seat = notice.names.index(player) if player in notice.names else None
    match notice.data["channel"]:
        case "jail":
            return player == "Jailor" or seat == day.prisoner
        case "dead":
            return player == "Medium" or seat in day.ghosts
        case "seance":
            return player == "Medium" or seat in day.seances.values()
        case channel:
            return player == _STRANGERS[str(channel)] if seat is None else notice.has_teammate(seat)


def _spy_report(notice: Notice) -> bool:
    looker_aims = [notice.day.may_aim(seat, {"bug"}) for seat in (notice.seat, *_puppets(notice))]
    return any(notice.about() in aims for aims in looker_aims)


def _cleaned(notice: Notice) -> bool:
    """A Janitor reads what is hidden of the body they went to, in whosever place that one slept."""
    reached = notice.day.swapped(notice.day.may_aim(notice.seat, {"clean"}))
    return notice.is_one_of("janitor") and notice.about() in reached


MAY_BE_TOLD: Mapping[str, Rule] = {
    EventKind.ROLE_CARD: lambda notice: notice.is_one_of(str(notice.data["role"]).lower()),
    EventKind.TEAM: _names_own_team,
    EventKind.QUARRY: lambda notice: notice.becomes("executioner") and notice.about() != notice.seat,
    EventKind.WHISPER: lambda notice: (
        notice.seat in (notice.about("player"), notice.about("to")) or notice.is_one_of("blackmailer", "spy")
    ),
    EventKind.CHAT: _speaker,
    EventKind.JAIL_CHOSEN: lambda notice: notice.about() in notice.day.jail_choices.get(notice.seat, ()),
    "jailed": lambda notice: notice.seat == notice.day.prisoner,
    "jailing": lambda notice: notice.seat == notice.day.keeper and notice.about("prisoner") == notice.day.prisoner,
    EventKind.TEAMMATE_JAILED: lambda notice: (
        notice.about("player") == notice.day.prisoner
        and notice.has_teammate(notice.about("player"))
        and notice.about("player") != notice.seat
    ),
    EventKind.SEANCE_CHOSEN: lambda notice: notice.day.seances.get(notice.seat) == notice.about(),
    EventKind.SEANCE: lambda notice: notice.seat in notice.day.seances.values(),
    EventKind.ACTION_CHOSEN: _own_deed,
    "haunt_offered": _is_one_of("jester"),
    "blocked": _may_be_hit("block"),
    "block_resisted": _may_be_hit("block"),
    "block_failed": _own_aim("block"),
    "target_jailed": _jailed_aim,
    "result": _finding,
    "attacked": _attacked,
    "patient_attacked": _own_aim("heal"),
    "defence_too_strong": _defence,
    "executions_lost": lambda notice: notice.seat == notice.day.keeper and notice.about() == notice.day.prisoner,
    "goal_met": _is_one_of("executioner", "jester"),
    EventKind.CONVERTED: lambda notice: notice.becomes(str(notice.data["role"]).lower()),
    EventKind.TEAM_CHANGED: _team_news,
    EventKind.TEAM_JOINED: _team_news,
    "failed": lambda notice: notice.about() in notice.day.may_aim(notice.seat, {"heal", "raise", "revive", "remember"}),
    "controlled": _may_be_hit("control"),
    "control_failed": _own_aim("control"),
    "control_resisted": _may_be_hit("control"),
    "transported": _may_be_hit("swap"),
    "doused": _is_one_of("arsonist"),
    "visited": _is_one_of("arsonist"),
    "blackmailed": _may_be_hit("blackmail"),
    "guilt": lambda notice: (
        notice.is_one_of("vigilante")
        and notice.about() in notice.day.swapped(notice.day.may_aim(notice.seat, {"shoot"}))
    ),
    "cleaned": _cleaned,
    "mafia_visits": _is_one_of("spy"),
    "bugged": _spy_report,
    "caution": _is_one_of("serial killer"),
}
"""Whether a seat may be told a notice of that kind, with what stands in it."""

_TELLS_ROLES = frozenset(
    {
        *(EventKind.ROLE_CARD, EventKind.TEAM, "result", EventKind.CONVERTED, EventKind.TEAM_CHANGED),
        *(EventKind.TEAM_JOINED, "cleaned", "attacked", EventKind.CHAT),
    }
)
_NAMES_NOBODY = frozenset(
    {
        *(EventKind.ROLE_CARD, "jailed", EventKind.SEANCE, "blocked", "block_resisted"),
        *("attacked", "goal_met", EventKind.CONVERTED, "controlled", "transported"),
        *("control_resisted", "doused", "blackmailed", "caution"),
    }
)


def may_be_told(notice: Notice) -> bool:
    """Whether the reader of a notice may know it, the names in it included."""
    if notice.kind in _NAMES_NOBODY and any(name in str(notice.data) for name in notice.names):
        return False
    if notice.kind not in _TELLS_ROLES and roles_named(str(notice.data)):
        return False
    return MAY_BE_TOLD[notice.kind](notice)


def roles_named(text: str) -> set[str]:
    """The roles `text` names, in lower case."""
    return {found.lower() for found in _ROLE.findall(text)}


_NAMELESS = frozenset(
    {
        *(EventKind.REMEMBERED, EventKind.NO_DEATH, EventKind.FULL_MOON, EventKind.VOTING_START),
        *(EventKind.DAY_START, EventKind.NIGHT_START),
    }
)


def may_be_public(kind: str, data: JsonObject, names: Collection[str], slots: Collection[str]) -> bool:
    """Whether everybody may learn this: no role of the living, and of a death not who did it (rules, section 15)."""
    named = {name for name in names if name in str(data)}
    roles = roles_named(str(data))
    match kind:
        case EventKind.GAME_START:
            return data["lobby"] == list(slots)
        case EventKind.GAME_END:
            return True
        case EventKind.DEATH:
            return named == {data["player"]} and roles <= {str(data["role"]).lower()}
        case EventKind.REMEMBERED:
            return not named
        case EventKind.REVEALED:
            return roles == {"mayor"}
        case _:
            return not roles and not (kind in _NAMELESS and named)
