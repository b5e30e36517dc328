"""Escort: keeps one player from acting (rules, section 7.3 and section 6 step 5)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, Step, others
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Faction

BLOCK_ABILITY = NightAbility(
    verb="block",
    tactic=tactics.block,
    help="keep that player from acting tonight",
    step=Step.BLOCK,
    effect=lambda night, deed: night.block(deed.seat, night.house(deed)),
    aims=others,
)

ROLE = Role(
    name="Escort",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night block one player: whatever they chose to do that night does not happen. You cannot be blocked.",
    goal=GOAL,
    group="town",
    is_raisable=True,
    investigator_group=8,
    investigator_place=1,
    is_block_immune=True,
    yields_to=lambda player, other: other.faction is Faction.MAFIA,
    abilities=(BLOCK_ABILITY,),
)
