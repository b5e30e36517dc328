"""FIXME Blackmailer: silences one player for the next day and reads all whispers (rules, section 8.2).

Consigliere: learns one player's exact role (rules, section 8.2).

Consort: the Escort of the Mafia (rules, section 8.2).
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.state import Deed, Faction
from mac_runner.environments.town_of_salem.night.state import NightState, Step
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, Role, with_article
from mac_runner.environments.town_of_salem.roles.mafia_killing import MAFIA_GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.roles.town_support import BLOCK_ABILITY


def _blackmail(night: NightState, deed: Deed) -> None:
    house = night.house(deed)
    night.put(replace(night.player(house), is_blackmailed=True))
    night.tell(house, EventKind.BLACKMAILED)


BLACKMAILER = Role(
    name="Blackmailer",
    short_names=("BM",),
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night silence one player: on the next day they can neither speak nor whisper, not even on the stand, "
    "but they can vote and judge. You read all whispers. If the Godfather and the Mafioso are both dead, a member of "
    "the Mafia takes up the killing.",
    goal=MAFIA_GOAL,
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


def _look_into(night: NightState, deed: Deed) -> None:
    night.find(deed.seat, deed.targets[0], with_article(night.role_of(night.house(deed)).name))


CONSIGLIERE = Role(
    name="Consigliere",
    short_names=("consig",),
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night learn the exact role of one player. Frames and petrol do not mislead you. If the Godfather and "
    "the Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=MAFIA_GOAL,
    group="mafia",
    investigator_group=10,
    investigator_place=2,
    may_become=RANKS,
    abilities=(
        NightAbility(
            verb="look_into",
            tactic=tactics.ask,
            help="learn that player's exact role",
            step=Step.INVESTIGATE,
            effect=_look_into,
            aims=outsiders,
        ),
    ),
)


CONSORT = Role(
    name="Consort",
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    card="Each night block one player: whatever they chose to do that night does not happen. You cannot be blocked. If "
    "the Godfather and the Mafioso are both dead, a member of the Mafia takes up the killing.",
    goal=MAFIA_GOAL,
    group="mafia",
    investigator_group=8,
    investigator_place=3,
    is_block_immune=True,
    may_become=RANKS,
    abilities=(replace(BLOCK_ABILITY, aims=outsiders),),
)
