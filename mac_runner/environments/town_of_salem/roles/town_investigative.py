"""Town Investigative: Investigator, Lookout, Sheriff and Spy (rules, sections 7.5 to 7.8)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache, partial

from mac_runner.environments.town_of_salem.model.events import (
    MAFIA_MEMBER,
    NOT_SUSPICIOUS,
    SUSPICIOUS,
    Notice,
    Says,
    visited_by,
    with_article,
)
from mac_runner.environments.town_of_salem.model.role import (
    DOUSED,
    TOWN_GOAL,
    Alignment,
    NightAbility,
    NightState,
    Role,
    Step,
    everybody,
    others,
)
from mac_runner.environments.town_of_salem.model.state import Faction, NightAction, Options
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES, follows_roles
from mac_runner.environments.town_of_salem.roles.mafia import FRAMED, FRAMER
from mac_runner.environments.town_of_salem.roles.neutral import ARSONIST

_role = partial(
    Role,
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    goal=TOWN_GOAL,
    group="town",
    is_informed=True,
)


# The Investigator learns a short list of roles, one of which the target holds (rules, section 7.6).
@follows_roles
@cache
def groups() -> Mapping[int, tuple[str, ...]]:
    """The lists, by number: the names of the roles in each."""
    found: dict[int, list[Role]] = {}
    for role in sorted(ROLES.values(), key=lambda role: (role.investigator_group, role.investigator_place)):
        found.setdefault(role.investigator_group, []).append(role)
    return {number: tuple(role.name for role in roles) for number, roles in found.items()}


def _investigate(night: NightState, action: NightAction) -> None:
    house = night.house(action)
    *rest, last = groups()[_group(night, house)]
    finding = with_article(f"{', '.join(rest)} or {last}" if rest else last)
    night.find(action, finding)


def _group(night: NightState, house: int) -> int:
    if FRAMED in night.tonight[house]:
        return FRAMER.investigator_group
    if DOUSED in night.player(house).marks:
        return ARSONIST.investigator_group
    return night.role_of(night.looks_like(house)).investigator_group


def _investigators_card(roles: Collection[Role], options: Options) -> str:
    """With the lists that can be found where these roles are in play."""
    played = {role.investigator_group for role in roles}
    lists = "; ".join(", ".join(names) for number, names in groups().items() if number in played)
    misled = [
        f"A {how} player shows the {role.name}'s list. "
        for how, role in (("framed", FRAMER), ("doused", ARSONIST))
        if role in roles
    ]
    return (
        "Each night investigate one player and learn a short list of roles, one of which is theirs. "
        f"{''.join(misled)}The lists: {lists}."
    )


INVESTIGATOR = _role(
    name="Investigator",
    is_key=True,
    short_names=("invest",),
    card=_investigators_card,
    investigator_group=10,
    investigator_place=1,
    worth=4.0,
    abilities=(
        NightAbility(
            verb="investigate",
            tactic="ask",
            examines=True,
            account="I went through the papers of {target}",
            help="learn a short list of roles, one of which is that player's",
            step=Step.INVESTIGATE,
            effect=_investigate,
            aims=others,
        ),
    ),
)


# The Lookout sees the visitors of one house (rules, section 7.7).
def _watch(night: NightState, action: NightAction) -> None:
    house = night.house(action)
    seen = [night.looks_like(visitor) for visitor in night.visitors(house) if visitor != action.seat]
    # The Jailor is with the prisoner, without a visit that others could meet.
    if house == night.state.prisoner and night.state.keeper is not None:
        seen.append(night.state.keeper)
    names = sorted({night.name_of(visitor) for visitor in seen})
    night.chance("watch", action.seat).shuffle(names)
    night.find(action, visited_by(names))


LOOKOUT = _role(
    name="Lookout",
    short_names=("LO",),
    card="Each night watch one house, your own if you like, and learn who visited it.",
    investigator_group=7,
    investigator_place=1,
    worth=3.0,
    abilities=(
        NightAbility(
            verb="watch",
            tactic="protect",
            account="I stood across the street from {target}",
            help="learn who visits that player tonight",
            step=Step.INVESTIGATE,
            effect=_watch,
            aims=everybody,
            reaches_jail=True,
            # A Lookout sees the visitors who arrive where he looks, not those who set out for it.
            is_moved=False,
        ),
    ),
)


# The Sheriff asks whether one player is suspicious (rules, section 7.5).
def _interrogate(night: NightState, action: NightAction) -> None:
    house = night.house(action)
    role = night.role_of(house)
    is_framed = FRAMED in night.tonight[house]
    is_suspicious = role.faction is Faction.MAFIA and not role.is_detection_immune
    if role.suspicious_when is not None:
        is_suspicious = role.suspicious_when(night.state)
    if not is_suspicious and not is_framed:
        finding = NOT_SUSPICIOUS
    elif night.state.options.sheriff == "binary":
        finding = SUSPICIOUS
    else:
        is_mafia = is_framed or role.faction is Faction.MAFIA
        finding = MAFIA_MEMBER if is_mafia else f"a {role.name.lower()}"
    night.find(action, finding)


def _sheriffs_card(roles: Collection[Role], options: Options) -> str:
    kind = "" if options.sheriff == "binary" else ", and of which kind"
    unseen = (role.name for role in roles if role.faction is Faction.MAFIA and role.is_detection_immune)
    looks_innocent = next((f", except the {name}" for name in unseen), "")
    exceptions = ["A framed player is suspicious too."] if FRAMER in roles else []
    for role in roles:
        if role.suspicious_when is not None:
            exceptions.append(f"A {role.name} is suspicious {'on a full moon' if role.minds_the_moon else 'too'}.")
    return " ".join(
        (
            f"Each night interrogate one player and learn whether they are suspicious{kind}.",
            f"Every member of the Mafia is suspicious{looks_innocent}.",
            *exceptions,
        )
    )


SHERIFF = _role(
    name="Sheriff",
    is_key=True,
    finds_suspicion=True,
    card=_sheriffs_card,
    investigator_group=5,
    investigator_place=1,
    worth=4.0,
    abilities=(
        NightAbility(
            verb="interrogate",
            tactic="ask",
            examines=True,
            account="I asked {target} a few questions",
            help="learn whether that player is suspicious",
            step=Step.INVESTIGATE,
            effect=_interrogate,
            aims=others,
        ),
    ),
)


# The Spy knows where the Mafia goes and what befalls one player (rules, section 7.8).
MAFIA_VISITS = Notice(
    name="mafia_visits", words="The Mafia visited: {visited}.", says=Says.VISITED_BY_MAFIA, is_finding=True
)


def bugged(notice: Notice) -> Notice:
    """What a bug tells of a notice to the player it sits on. What that player found out is not about themselves."""
    return Notice(
        name="bugged",
        words=f"Your bug on {{target}}: {notice.befalls}.",
        says=None if notice.is_finding else notice.says,
        is_finding=True,
    )


def _listen_in(night: NightState, action: NightAction) -> None:
    """Report what befell the player the bug sits on; a raised Spy reports too, being dead already."""
    target = night.house(action)
    if not night.player(action.seat).alive and action.seat in night.living:
        return
    heard = [event.notice for event in night.events if event.audience == frozenset({target}) and event.notice.befalls]
    heard += [notice for seat, notice in night.unnoticed if seat == target]
    for notice in heard:
        night.report(action.seat, bugged(notice), target=night.name_of(target), happened=notice.name)


def _report_visits(night: NightState, seat: int) -> None:
    # A Spy who was brought back tonight has not followed anybody.
    if seat not in night.living or not night.player(seat).alive or not night.is_able(seat):
        return
    visited = [
        night.name_of(visit.house)
        for visit in night.visits
        if night.state.players[visit.visitor].faction is Faction.MAFIA
    ]
    if visited:
        night.chance("spy", seat).shuffle(visited)
        night.notify(seat, MAFIA_VISITS, visited=list(visited))


def _spys_card(roles: Collection[Role], options: Options) -> str:
    visits = "You also learn each night whom the Mafia visited, but not who went."
    if options.spy == "ears":
        return f"You hear what the Mafia says at night, but not who says it, and you read all whispers. {visits}"
    return (
        "Each night put a bug on one player and learn what happens to them: attacks, blocks, moves and the like. "
        f"{visits}"
    )


SPY = _role(
    name="Spy",
    card=_spys_card,
    investigator_group=4,
    investigator_place=1,
    worth=3.0,
    reads_whispers=lambda options: options.spy == "ears",
    overhears=lambda options: Faction.MAFIA if options.spy == "ears" else None,
    by_night={Step.REPORT: _report_visits},
    abilities=(
        NightAbility(
            verb="bug",
            tactic="protect",
            account="I listened at the wall of {target}",
            help="learn what happens to that player tonight",
            step=Step.REPORT,
            effect=_listen_in,
            aims=others,
            is_moved=False,
            is_offered=lambda state, player: player.alive and state.options.spy == "bug",
        ),
    ),
)
