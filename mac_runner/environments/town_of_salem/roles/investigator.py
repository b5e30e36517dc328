"""Investigator: learns a short list of roles one of which the target holds (rules, section 7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.roles.base import DOUSED, Alignment, NightAbility, Role, Step, others
from mac_runner.environments.town_of_salem.roles.framer import FRAMED, FRAMER_GROUP
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night

GROUPS: dict[int, tuple[str, ...]] = {
    1: ("Vigilante", "Veteran", "Mafioso"),
    2: ("Medium", "Janitor", "Retributionist"),
    3: ("Survivor", "Vampire Hunter", "Amnesiac"),
    4: ("Spy", "Blackmailer", "Jailor"),
    5: ("Sheriff", "Executioner", "Werewolf"),
    6: ("Framer", "Vampire", "Jester"),
    7: ("Lookout", "Forger", "Witch"),
    8: ("Escort", "Transporter", "Consort"),
    9: ("Doctor", "Disguiser", "Serial Killer"),
    10: ("Investigator", "Consigliere", "Mayor"),
    11: ("Bodyguard", "Godfather", "Arsonist"),
}

# What smells of petrol shows the list of who pours it.
ARSONIST_GROUP = 11


def _investigate(night: Night, deed: Deed) -> None:
    house = night.house(deed)
    *rest, last = GROUPS[_group(night, house)]
    article = "an" if rest[0][0] in "AEIOU" else "a"
    finding = f"{article} {', '.join(rest)} or {last}"
    night.find(deed.seat, deed.targets[0], finding)


def _group(night: Night, house: int) -> int:
    if FRAMED in night.tonight[house]:
        return FRAMER_GROUP
    if DOUSED in night.player(house).marks:
        return ARSONIST_GROUP
    return night.role_of(night.looks_like(house)).investigator_group


ROLE = Role(
    name="Investigator",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card="Each night investigate one player and learn three roles, one of which is theirs. A framed player shows the "
    "Framer's list, a doused one the Arsonist's. The lists: "
    + "; ".join(", ".join(names) for names in GROUPS.values())
    + ".",
    goal=GOAL,
    group="town",
    is_raisable=True,
    investigator_group=10,
    abilities=(
        NightAbility(
            verb="investigate",
            help="learn a list of three roles, one of which is that player's",
            step=Step.INVESTIGATE,
            effect=_investigate,
            aims=others,
        ),
    ),
)
