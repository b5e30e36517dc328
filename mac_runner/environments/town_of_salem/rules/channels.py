"""The private conversations of a night: speakers, hearers, and the names they go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mac_runner.environments.town_of_salem.model.state import TEAMS, Faction, GameState, Phase
from mac_runner.environments.town_of_salem.roles import ROLES

_STRANGERS = {Faction.MAFIA: "A member of the Mafia", Faction.VAMPIRE: "A Vampire"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One conversation of a night."""

    name: str
    speakers: tuple[int, ...]
    hearers: frozenset[int]
    aliases: Mapping[int, str] = field(default_factory=dict)
    """The names that seats go by in it, where those are not their own."""
    overhearers: frozenset[int] = frozenset()
    """They hear the words, but not who speaks."""
    stranger: str = ""
    """The name of every speaker to the overhearers."""
    first: int | None = None
    """The seat that speaks first in each round: those who hear it answer. None: all speak at once."""

    def name_of(self, state: GameState, seat: int) -> str:
        """The name under which the others hear `seat`."""
        return self.aliases.get(seat, state.players[seat].name)


def channels(state: GameState) -> tuple[Channel, ...]:
    """The channels of this night, in the order in which a seat that has several is asked by default."""
    found = (_jail(state), *(_team(state, faction) for faction in TEAMS), _dead(state), _seance(state))
    return tuple(channel for channel in found if channel is not None)


def channels_of(state: GameState, seat: int) -> tuple[Channel, ...]:
    """The channels `seat` may speak in."""
    return tuple([channel for channel in channels(state) if seat in channel.speakers])


def first_speakers(state: GameState) -> dict[int, str]:
    """The seats of this round that speak before others, each with the channel where it does."""
    if state.phase is not Phase.NIGHT_CHAT:
        return {}
    return {found.first: found.name for found in channels(state) if found.first is not None}


def answering(state: GameState) -> frozenset[int]:
    """The seats of this round that answer a first speaker: those who hear one and are none."""
    if state.phase is not Phase.NIGHT_CHAT:
        return frozenset()
    led = [found for found in channels(state) if found.first is not None]
    return frozenset().union(*(found.hearers | found.overhearers for found in led)) - {found.first for found in led}


def _by_role(state: GameState, *seats: int) -> dict[int, str]:
    return {seat: ROLES[state.players[seat].role].name for seat in seats}


def _jail(state: GameState) -> Channel | None:
    if state.keeper is None or state.prisoner is None:
        return None
    both = (state.keeper, state.prisoner)
    return Channel(
        name="jail",
        speakers=both,
        hearers=frozenset(both),
        aliases=_by_role(state, state.keeper),
        first=state.keeper,
    )


def _team(state: GameState, faction: Faction) -> Channel | None:
    free = [player for player in state.players if player.death is None and player.seat != state.prisoner]
    team = tuple([player.seat for player in free if player.faction is faction])
    if len(team) < 2:
        return None
    overhearers = frozenset([player.seat for player in free if ROLES[player.role].overhears(state.options) is faction])
    return Channel(
        name=faction.value,
        speakers=team,
        hearers=frozenset(team),
        overhearers=overhearers,
        stranger=_STRANGERS[faction],
    )


def _dead(state: GameState) -> Channel | None:
    ghosts = tuple([player.seat for player in state.players if player.death is not None])
    mediums = tuple([player.seat for player in state.living if ROLES[player.role].talks_with_dead]) if ghosts else ()
    if not mediums:
        return None
    # A prisoner still hears the dead, but can only talk to the keeper.
    speaking = tuple(seat for seat in mediums if seat != state.prisoner)
    return Channel(
        name="dead",
        speakers=ghosts + speaking,
        hearers=frozenset(ghosts + mediums),
        aliases=_by_role(state, *mediums),
    )


def _seance(state: GameState) -> Channel | None:
    seance = state.seance
    if seance is None or not state.players[seance.target].alive:
        return None
    both = (seance.medium, seance.target)
    return Channel(name="seance", speakers=both, hearers=frozenset(both), aliases=_by_role(state, seance.medium))
