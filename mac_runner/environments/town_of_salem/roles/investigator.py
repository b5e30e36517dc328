"""Investigator: learns a short list of roles one of which the target holds (rules, section 7.6)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.arsonist import ROLE as ARSONIST
from mac_runner.environments.town_of_salem.roles.base import (
    DOUSED,
    Alignment,
    NightAbility,
    NightState,
    Role,
    Step,
    others,
    with_article,
)
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES, follows_roles
from mac_runner.environments.town_of_salem.roles.framer import FRAMED
from mac_runner.environments.town_of_salem.roles.framer import ROLE as FRAMER
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction


@follows_roles
@cache
def groups() -> Mapping[int, tuple[str, ...]]:
    """The lists, by number: the names of the roles in each."""
    found: dict[int, list[Role]] = {}
    for role in sorted(ROLES.values(), key=lambda role: (role.investigator_group, role.investigator_place)):
        found.setdefault(role.investigator_group, []).append(role)
    return {number: tuple(role.name for role in roles) for number, roles in found.items()}


def _investigate(night: NightState, deed: Deed) -> None:
    house = night.house(deed)
    *rest, last = groups()[_group(night, house)]
    finding = with_article(f"{', '.join(rest)} or {last}" if rest else last)
    night.find(deed.seat, deed.targets[0], finding)


def _group(night: NightState, house: int) -> int:
    if FRAMED in night.tonight[house]:
        return FRAMER.investigator_group
    if DOUSED in night.player(house).marks:
        return ARSONIST.investigator_group
    return night.role_of(night.looks_like(house)).investigator_group


def _card() -> str:
    lists = "; ".join(", ".join(names) for names in groups().values())
    return (
        "Each night investigate one player and learn three roles, one of which is theirs. A framed player shows the "
        f"Framer's list, a doused one the Arsonist's. The lists: {lists}."
    )


ROLE = Role(
    name="Investigator",
    short_names=("invest",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card=_card,
    goal=GOAL,
    group="town",
    is_raisable=True,
    investigator_group=10,
    investigator_place=1,
    worth=4.0,
    is_informed=True,
    abilities=(
        NightAbility(
            verb="investigate",
            tactic=tactics.ask,
            help="learn a list of three roles, one of which is that player's",
            step=Step.INVESTIGATE,
            effect=_investigate,
            aims=others,
        ),
    ),
)
