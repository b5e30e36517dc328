"""Medium: speaks with the dead, and once, when dead, with one of the living (rules, section 7.10).

The night chat with the dead belongs to every living Medium and is laid out in `channels`.
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Changed,
    DayAbility,
    Role,
    others,
)
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Faction, GameState, Player, Seance


def _seance(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    (target,) = targets
    spent = replace(player, uses={**player.uses, "seance": player.uses["seance"] - 1})
    state = replace(state.with_player(spent), seance=Seance(medium=player.seat, target=target))
    return Changed(state, (private(state, EventKind.SEANCE_CHOSEN, (player.seat,), target=state.players[target].name),))


ROLE = Role(
    name="Medium",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="While you live, you talk with all the dead every night; to them you are only `Medium`. Once you are dead, "
    "you may choose one living player by day, once in the game, and talk with them in the coming night.",
    goal=GOAL,
    group="town",
    investigator_group=2,
    investigator_place=1,
    worth=2.0,
    is_informed=True,
    talks_with_dead=True,
    abilities=(
        DayAbility(
            verb="seance",
            help="talk with that living player in the coming night, once in the game",
            effect=_seance,
            aims=others,
            is_offered=lambda state, player: not player.alive and state.seance is None,
            uses=1,
        ),
    ),
)
