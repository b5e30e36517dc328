"""The bulletproof vest, which several roles own."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Level, NightAbility, Step

VEST = "vest"
VEST_ABILITY = NightAbility(
    verb=VEST,
    tactic=tactics.vest,
    help="put on a vest: a basic defence for tonight",
    step=Step.PROTECT,
    effect=lambda night, deed: night.defend(deed.seat, Level.BASIC),
    is_visit=False,
)
