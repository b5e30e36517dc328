"""Mafia Support: Blackmailer, Consigliere and Consort (rules, section 8.2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import Notice, Says, with_article
from mac_runner.environments.town_of_salem.model.night import Step
from mac_runner.environments.town_of_salem.model.role import Alignment, NightAbility, NightState, Role
from mac_runner.environments.town_of_salem.model.state import Faction, NightAction
from mac_runner.environments.town_of_salem.roles.mafia_killing import IN_COMMON, MAFIA_GOAL, RANKS, outsiders
from mac_runner.environments.town_of_salem.roles.town_support import BLOCK_ABILITY

_role = partial(
    Role,
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_SUPPORT,
    goal=MAFIA_GOAL,
    in_common=IN_COMMON,
    group="mafia",
    may_become=RANKS,
)


# The Blackmailer silences one player for the next day and reads all whispers.
BLACKMAILED = Notice(
    name="blackmailed",
    words="You are blackmailed: tomorrow you cannot speak or whisper by day.",
    befalls="they were blackmailed",
    says=Says.BLACKMAILED,
)


def _blackmail(night: NightState, action: NightAction) -> None:
    house = night.house(action)
    night.put(replace(night.player(house), is_blackmailed=True))
    night.notify(house, BLACKMAILED)


BLACKMAILER = _role(
    name="Blackmailer",
    short_names=("BM",),
    card="Each night silence one player: on the next day they cannot speak or whisper, not even in their own "
    "defence. They can still vote and judge. You read all whispers.",
    investigator_group=4,
    investigator_place=2,
    reads_whispers=lambda options: True,
    abilities=(
        NightAbility(
            verb="blackmail",
            tactic="silence",
            help="keep that player from speaking and whispering on the next day",
            step=Step.PROTECT,
            effect=_blackmail,
            aims=outsiders,
        ),
    ),
)


# The Consigliere learns one player's exact role.
def _look_into(night: NightState, action: NightAction) -> None:
    night.find(action.seat, action.targets[0], with_article(night.role_of(night.house(action)).name))


CONSIGLIERE = _role(
    name="Consigliere",
    shares_roles=True,
    short_names=("consig",),
    card="Each night learn the exact role of one player. Frames and petrol do not mislead you.",
    investigator_group=10,
    investigator_place=2,
    abilities=(
        NightAbility(
            verb="look_into",
            tactic="ask",
            help="learn that player's exact role",
            step=Step.INVESTIGATE,
            effect=_look_into,
            aims=outsiders,
        ),
    ),
)


# The Consort is the Escort of the Mafia.
CONSORT = _role(
    name="Consort",
    card="Each night block one player: what they chose to do that night does not happen. You cannot be blocked.",
    investigator_group=8,
    investigator_place=3,
    is_block_immune=True,
    abilities=(replace(BLOCK_ABILITY, aims=outsiders),),
)
