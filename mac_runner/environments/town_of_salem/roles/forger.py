"""Forger: leaves another will with the dead (rules, section 8.2)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Deed, Faction


def _forge(night: NightState, deed: Deed) -> None:
    """Only the dead leave a will, and only a forged one costs a use."""
    body = night.player(night.house(deed))
    if body.death is None:
        return
    night.spend(deed)
    night.put(replace(body, death=replace(body.death, forged_will=deed.text)))


ROLE = Role(
    name="Forger",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_DECEPTION,
    card="Each night write a will for one player: if they die that night, yours is read out in place of theirs. You "
    "can forge a few wills only; a night without a body costs nothing. If the Godfather and the Mafioso are both dead, "
    "a member of the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=7,
    investigator_place=2,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="forge",
            tactic=tactics.forge,
            help="have your words read out as that player's will if they die tonight",
            step=Step.BURY,
            effect=_forge,
            aims=outsiders,
            takes_text=True,
            uses=lambda options: options.forger_uses,
            is_spent_by_use=False,
        ),
    ),
)
