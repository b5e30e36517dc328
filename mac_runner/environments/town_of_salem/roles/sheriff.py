"""Sheriff: asks whether one player is suspicious (rules, section 7.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step, others
from mac_runner.environments.town_of_salem.roles.framer import FRAMED
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction

if TYPE_CHECKING:
    from mac_runner.environments.town_of_salem.night import Night


def _interrogate(night: Night, deed: Deed) -> None:
    house = night.house(deed)
    role = night.role_of(house)
    is_framed = FRAMED in night.tonight[house]
    if not _is_suspicious(night, role) and not is_framed:
        finding = "not suspicious"
    elif night.state.options.sheriff == "binary":
        finding = "suspicious"
    else:
        is_mafia = is_framed or role.faction is Faction.MAFIA
        finding = "a member of the mafia" if is_mafia else f"a {role.name.lower()}"
    night.find(deed.seat, deed.targets[0], finding)


def _is_suspicious(night: Night, role: Role) -> bool:
    if role.suspicious_when is not None:
        return role.suspicious_when(night.state)
    return role.faction is Faction.MAFIA and not role.is_detection_immune


ROLE = Role(
    name="Sheriff",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card="Each night interrogate one player and learn whether they are suspicious. Members of the Mafia are "
    "suspicious, but the Godfather is not, and a framed player is. So are a Serial Killer, and a "
    "Werewolf on a full moon.",
    goal=GOAL,
    group="town",
    is_raisable=True,
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
