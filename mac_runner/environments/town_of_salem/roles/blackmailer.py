"""Blackmailer: silences one player for the next day and reads all whispers (rules, section 8.2)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.mafia import GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.state import Deed, Faction


def _blackmail(night: NightState, deed: Deed) -> None:
    house = night.house(deed)
    night.put(replace(night.player(house), is_blackmailed=True))
    night.tell(house, EventKind.BLACKMAILED)


ROLE = Role(
    name="Blackmailer",
    short_names=("BM",),
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night silence one player: on the next day they can neither speak nor whisper, not even on the stand, "
    "but they can vote and judge. You read all whispers. If the Godfather and the Mafioso are both dead, a member of "
    "the Mafia takes up the killing.",
    goal=GOAL,
    group="mafia",
    investigator_group=4,
    investigator_place=2,
    reads_whispers=lambda options: True,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="blackmail",
            tactic=tactics.silence,
            help="keep that player from speaking and whispering on the next day",
            step=Step.PROTECT,
            effect=_blackmail,
            aims=outsiders,
        ),
    ),
)
