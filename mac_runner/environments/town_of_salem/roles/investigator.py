"""Investigator: learns a short list of roles one of which the target holds (rules, section 7.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step, others
from mac_runner.environments.town_of_salem.roles.framer import FRAMED, FRAMER_GROUP
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


def _investigate(night: Night, deed: Deed) -> None:
    house = night.house(deed)
    group = FRAMER_GROUP if FRAMED in night.tonight[house] else night.role_of(house).investigator_group
    *rest, last = GROUPS[group]
    article = "an" if rest[0][0] in "AEIOU" else "a"
    finding = f"{article} {', '.join(rest)} or {last}"
    night.tell(deed.seat, EventKind.RESULT, about=night.name_of(deed.targets[0]), finding=finding)


ROLE = Role(
    name="Investigator",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card="Each night investigate one player and learn three roles, one of which is theirs. A framed player shows the "
    "Framer's list. The lists: " + "; ".join(", ".join(names) for names in GROUPS.values()) + ".",
    goal="Win with the Town: see every member of the Mafia dead.",
    group="town",
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
