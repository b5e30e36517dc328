"""Deaths in public: how they are announced, what the living do about them, and whether they end the game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mac_runner.environments.town_of_salem.events import UNKNOWN_ROLE, Event, EventKind, Events, public
from mac_runner.environments.town_of_salem.roles import ROLES, Changed
from mac_runner.environments.town_of_salem.roles.mafia import promote
from mac_runner.environments.town_of_salem.state import GameState, Phase, Player, Result
from mac_runner.environments.town_of_salem.victory import check


def announcement(state: GameState, victim: Player) -> Event:
    """What everybody is shown of a body; the killer's name is no part of it."""
    death = victim.death
    if death is None:
        raise ValueError(f"{victim.name} is not dead")
    role = victim.shown_role
    will = victim.will if death.forged_will is None else death.forged_will
    return public(
        state,
        EventKind.DEATH,
        player=victim.name,
        role=UNKNOWN_ROLE if role is None else ROLES[role].name,
        causes=list(death.causes),
        will="" if death.is_cleaned or death.is_bloody else will,
        is_bloody=death.is_bloody and not death.is_cleaned,
        death_notes=[] if death.is_cleaned else list(death.notes),
    )


def after_deaths(state: GameState, fallen: Sequence[Player]) -> Changed:
    """What the living do about deaths just announced: conversions by role, then the Mafia closes its ranks."""
    events: Events = ()
    for seat in range(len(state.players)):
        player = state.players[seat]
        state, happened = ROLES[player.role].after_deaths(state, player)
        events += happened
    state, happened = promote(state, ROLES, fallen)
    return Changed(state, events + happened)


def end_if_over(state: GameState) -> Changed | None:
    """The end of the game, if it has come to one."""
    result = check(state)
    return None if result is None else end_game(state, result)


def end_game(state: GameState, result: Result) -> Changed:
    """The game is over, with this result."""
    state = replace(state, keeper=None, prisoner=None, jail_choice=None)
    event = public(state, EventKind.GAME_END, ending=result.ending, reason=result.reason, winners=list(result.winners))
    return Changed(replace(state, phase=Phase.OVER, order=(), acted=frozenset(), result=result), (event,))
