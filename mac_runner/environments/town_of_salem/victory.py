"""When a game is over, and who has won it (rules, section 13)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.state import Faction, GameState, Player, Result

# Two consecutive days and nights without a death end the game, counted from this day on.
QUIET_FROM_DAY = 7
QUIET_CYCLES_MAX = 2

# Endings of two that play cannot resolve: the pair of roles, and the group that is given the win.
STALEMATES: dict[frozenset[str], str] = {
    frozenset({"godfather", "escort"}): "mafia",
    frozenset({"mafioso", "escort"}): "mafia",
    frozenset({"framer", "escort"}): "mafia",
}


def check(state: GameState) -> Result | None:
    """The result, if the game ends here. Asked at every dawn and after every lynch."""
    living = state.living
    if not living:
        return Result(ending="draw", reason="nobody is left alive")
    groups = {group for player in living if (group := ROLES[player.role].group) is not None}
    if not groups:
        return Result(ending="draw", reason="nobody is left who could win as a group")
    if len(groups) == 1:
        (winner,) = groups
        return Result(ending="win", reason="all who opposed them are dead", winners=(winner,))
    stalemate = STALEMATES.get(frozenset(player.role for player in living)) if len(living) == 2 else None
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


def has_won(state: GameState, player: Player) -> bool:
    """Whether this player is among the winners: with their group, dead or alive, or by a goal of their own."""
    winners = state.result.winners if state.result else ()
    return player.has_met_goal or ROLES[player.role].group in winners
