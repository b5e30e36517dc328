"""Sheriff: asks whether one player is suspicious (rules, section 7.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step, others
from mac_runner.environments.town_of_salem.roles.framer import FRAMED
from mac_runner.environments.town_of_salem.state import Deed, Faction

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night


def _interrogate(night: Night, deed: Deed) -> None:
    house = night.house(deed)
    role = night.role_of(house)
    is_guilty_by_role = role.faction is Faction.MAFIA and not role.is_detection_immune
    is_framed = FRAMED in night.tonight[house]
    if not is_guilty_by_role and not is_framed:
        finding = "not suspicious"
    else:
        finding = "suspicious" if night.state.options.sheriff == "binary" else "a member of the mafia"
    night.tell(deed.seat, EventKind.RESULT, about=night.name_of(deed.targets[0]), finding=finding)


ROLE = Role(
    name="Sheriff",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card="Each night interrogate one player and learn whether they are suspicious. Members of the Mafia are "
    "suspicious, but the Godfather is not, and a framed player is.",
    goal="Win with the Town: see every member of the Mafia dead.",
    group="town",
    investigator_group=5,
    abilities=(
        NightAbility(
            verb="interrogate",
            help="learn whether that player is suspicious",
            step=Step.INVESTIGATE,
            effect=_interrogate,
            aims=others,
        ),
    ),
)
