"""Teams whose members know each other: what happens when somebody joins one in mid-game."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind, private, team_event
from mac_runner.environments.town_of_salem.roles.base import NightState
from mac_runner.environments.town_of_salem.state import TEAMS, Player


def join_team(night: NightState, player: Player) -> None:
    """Make a new member and the others of the team known to each other."""
    if player.faction not in TEAMS:
        return
    team = [other for other in night.state.players if other.faction is player.faction and other.alive]
    others = [other.seat for other in team if other.seat != player.seat]
    if others:
        role = night.role_of(player.seat).name
        night.announce(private(night.state, EventKind.TEAM_JOINED, others, player=player.name, role=role))
        night.announce(team_event(night.state, team, (player.seat,)))
