"""Janitor: hides what the dead were (rules, section 8.2)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Deed, Faction


def _clean(night: NightState, deed: Deed) -> None:
    """Only a body can be cleaned, and only a cleaned one costs a use."""
    body = night.player(night.house(deed))
    if body.death is None:
        return
    night.spend(deed)
    night.put(replace(body, death=replace(body.death, is_cleaned=True)))
    role = night.role_of(body.seat).name
    night.tell(deed.seat, EventKind.CLEANED, target=body.name, role=role, legacy=body.will)


ROLE = Role(
    name="Janitor",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_DECEPTION,
    card="Each night choose one player: if they die that night, nobody is shown their role or their will, and you "
    "learn both. You can clean a few bodies only; a night without a body costs nothing. If the Godfather and the "
    "Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=2,
    investigator_place=2,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="clean",
            tactic=tactics.bury,
            help="hide that player's role and will if they die tonight",
            step=Step.BURY,
            effect=_clean,
            aims=outsiders,
            uses=lambda options: options.janitor_uses,
            is_spent_by_use=False,
        ),
    ),
)
