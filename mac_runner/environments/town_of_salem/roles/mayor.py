"""Mayor: once revealed, his vote weighs three (rules, section 7.9)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, public
from mac_runner.environments.town_of_salem.roles.base import Alignment, Changed, DayAbility, Role
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Faction, GameState, Player

REVEAL = "reveal"
WEIGHT = 3


def _is_revealed(player: Player) -> bool:
    return player.uses[REVEAL] == 0


def _reveal(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    state = state.with_player(replace(player, uses={**player.uses, REVEAL: 0}))
    return Changed(state, (public(state, EventKind.REVEALED, player=player.name, role=ROLE.name),))


ROLE = Role(
    name="Mayor",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card=f"Once in the game you may reveal yourself by day. From then on your vote and your ballot weigh {WEIGHT}, you "
    "cannot whisper or be whispered to, and a Doctor cannot heal you.",
    goal=GOAL,
    group="town",
    investigator_group=10,
    investigator_place=3,
    worth=5.0,
    is_unique=True,
    votes=lambda player: WEIGHT if _is_revealed(player) else 1,
    is_healable=lambda player: not _is_revealed(player),
    may_whisper=lambda player: not _is_revealed(player),
    abilities=(
        DayAbility(
            verb=REVEAL,
            help=f"show everybody that you are the Mayor; from then on your vote weighs {WEIGHT}",
            effect=_reveal,
            uses=1,
        ),
    ),
)
