"""Deaths in public, the end of the game, and its winners (rules, section 13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind, Events, public
from mac_runner.environments.town_of_salem.model.role import Changed
from mac_runner.environments.town_of_salem.model.state import Faction, GameState, Phase, Player, Result
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.mafia_killing import promote

# Two consecutive days and nights without a death or a change of role end the game, counted from this day on.
QUIET_FROM_DAY = 7
QUIET_CYCLES_MAX = 2


def check(state: GameState) -> Result | None:
    """The result if the game ends here; called at every dawn and after every lynch."""
    living = state.living
    if not living:
        return Result(ending="draw", reason="nobody is left alive")
    groups = {group for player in living if (group := ROLES[player.role].group) is not None}
    if not groups:
        return Result(ending="draw", reason="nobody is left who could win as a group")
    if len(groups) == 1 and not _holds_out(living):
        (winner,) = groups
        return Result(ending="win", reason="all who opposed them are dead", winners=(winner,))
    stalemate = _award(*living) if len(living) == 2 else None
    if stalemate is not None:
        return Result(ending="win", reason="nobody left can stop them", winners=(stalemate,))
    mafia = sum(player.faction is Faction.MAFIA for player in living)
    if state.options.mafia_parity and 2 * mafia >= len(living):
        return Result(ending="win", reason="they are as many as all others", winners=("mafia",))
    if state.quiet_cycles >= QUIET_CYCLES_MAX:
        return Result(ending="draw", reason=f"{QUIET_CYCLES_MAX} days and nights passed without a death")
    if state.day > state.options.max_days:
        return Result(ending="capped", reason=f"the limit of {state.options.max_days} days is reached")
    return None


def _holds_out(living: tuple[Player, ...]) -> bool:
    """Whether the Town still has an enemy without a group, and a member who can fight it."""
    is_opposed = any(ROLES[player.role].is_hostile_to_town for player in living)
    return is_opposed and any(ROLES[player.role].holds_out(player) for player in living)


def _award(one: Player, other: Player) -> str | None:
    """The group that wins when these two are left and play cannot decide between them."""
    for strong, weak in ((one, other), (other, one)):
        winner, loser = ROLES[strong.role], ROLES[weak.role]
        if winner.outlasts(loser) or loser.yields_to(weak, winner):
            return winner.group
    return None


def has_won(state: GameState, player: Player) -> bool:
    """Whether a player has won: with their group, dead or alive, or by a goal of their own."""
    winners = state.result.winners if state.result else ()
    role = ROLES[player.role]
    return role.group in winners or player.has_met_goal or role.has_won(state, player)


def announcement(state: GameState, victim: Player) -> Event:
    """What all players see of a body; never the killer's name."""
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
    """What follows from deaths just announced: changes of role, then promotions in the Mafia."""
    events: Events = ()
    for seat in range(len(state.players)):
        player = state.players[seat]
        state, happened = ROLES[player.role].after_deaths(state, player)
        events += happened
    state, happened = promote(state, fallen)
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
