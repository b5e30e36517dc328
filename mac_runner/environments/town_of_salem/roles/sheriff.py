"""Sheriff: asks whether one player is suspicious (rules, section 7.5)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step, others
from mac_runner.environments.town_of_salem.roles.framer import FRAMED
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction


def _interrogate(night: NightState, deed: Deed) -> None:
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


def _is_suspicious(night: NightState, role: Role) -> bool:
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
    investigator_place=1,
    worth=4.0,
    is_informed=True,
    abilities=(
        NightAbility(
            verb="interrogate",
            tactic=tactics.ask,
            help="learn whether that player is suspicious",
            step=Step.INVESTIGATE,
            effect=_interrogate,
            aims=others,
        ),
    ),
)
