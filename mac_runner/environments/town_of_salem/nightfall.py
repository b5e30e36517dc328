"""Nightfall: the prisoner is taken, the private channels open, and those who can act are asked."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.channels import channels
from mac_runner.environments.town_of_salem.events import Event, EventKind, Events, private, public
from mac_runner.environments.town_of_salem.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.roles import ROLES, Changed, NightAbility
from mac_runner.environments.town_of_salem.roles.moon import is_full_moon
from mac_runner.environments.town_of_salem.rounds import open_round
from mac_runner.environments.town_of_salem.state import TEAMS, GameState, Phase, Player


def dusk(state: GameState) -> Changed:
    """Night falls: the prisoner is taken, private channels open if there are any, else everybody acts."""
    pair = (state.keeper, state.jail_choice)
    is_jailed = all(seat is not None and state.players[seat].alive for seat in pair)
    keeper, prisoner = pair if is_jailed else (None, None)
    state = replace(
        state,
        phase=Phase.NIGHT_CHAT,
        players=tuple(_unmuted(player) for player in state.players),
        votes={},
        accused=None,
        keeper=keeper,
        prisoner=prisoner,
        jail_choice=None,
    )
    events: list[Event] = [public(state, EventKind.NIGHT_START)]
    if is_full_moon(state) and any(role.minds_the_moon for role in roles_in_play(state.lobby)):
        events.append(public(state, EventKind.FULL_MOON))
    events += _jailing(state)
    if state.seance is not None and state.players[state.seance.target].alive:
        events.append(private(state, EventKind.SEANCE, (state.seance.target,)))
    speakers = sorted({seat for channel in channels(state) for seat in channel.speakers})
    if speakers and state.options.night_chat_rounds > 0:
        return Changed(open_round(state, Phase.NIGHT_CHAT, speakers, is_first=True), tuple(events))
    return Changed(open_night(state), tuple(events))


def _unmuted(player: Player) -> Player:
    return replace(player, is_blackmailed=False) if player.is_blackmailed else player


def _jailing(state: GameState) -> Events:
    if state.keeper is None or state.prisoner is None:
        return ()
    prisoner = state.players[state.prisoner]
    events: Events = (
        private(state, EventKind.JAILING, (state.keeper,), prisoner=prisoner.name),
        private(state, EventKind.JAILED, (prisoner.seat,)),
    )
    team = [player.seat for player in state.living if player.faction is prisoner.faction and player != prisoner]
    if prisoner.faction in TEAMS and team:
        events += (private(state, EventKind.TEAMMATE_JAILED, team, player=prisoner.name),)
    return events


def open_night(state: GameState) -> GameState:
    """Ask everybody who has something to choose tonight, the haunting dead included."""
    state = replace(state, phase=Phase.NIGHT)
    seats = [
        player.seat
        for player in state.players
        if any(
            isinstance(ability, NightAbility) and ability.offer(state, player) is not None
            for ability in ROLES[player.role].abilities
        )
    ]
    return open_round(state, Phase.NIGHT, seats, is_first=True)
