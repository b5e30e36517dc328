"""The private conversations of a night: who speaks in them, who hears them, and under which name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mac_runner.environments.town_of_salem.state import Faction, GameState, holder


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One conversation of a night. `aliases` gives the name a seat goes by in it, where that is not its own."""

    name: str
    speakers: tuple[int, ...]
    hearers: frozenset[int]
    aliases: Mapping[int, str] = field(default_factory=dict)

    def name_of(self, state: GameState, seat: int) -> str:
        """Under which name the others hear `seat`."""
        return self.aliases.get(seat, state.players[seat].name)


def channels(state: GameState) -> tuple[Channel, ...]:
    """The channels of this night, in the order in which a seat that has several is asked by default."""
    found = (_jail(state), _mafia(state), _dead(state), _seance(state))
    return tuple(channel for channel in found if channel is not None)


def channels_of(state: GameState, seat: int) -> tuple[Channel, ...]:
    """The channels `seat` may speak in."""
    return tuple(channel for channel in channels(state) if seat in channel.speakers)


def _jail(state: GameState) -> Channel | None:
    jailor = holder(state, "jailor")
    if jailor is None or state.prisoner is None:
        return None
    both = (jailor.seat, state.prisoner)
    return Channel(name="jail", speakers=both, hearers=frozenset(both), aliases={jailor.seat: "Jailor"})


def _mafia(state: GameState) -> Channel | None:
    team = tuple(
        player.seat for player in state.living if player.faction is Faction.MAFIA and player.seat != state.prisoner
    )
    return Channel(name="mafia", speakers=team, hearers=frozenset(team)) if len(team) > 1 else None


def _dead(state: GameState) -> Channel | None:
    mediums = tuple(player.seat for player in state.living if player.role == "medium")
    ghosts = tuple(player.seat for player in state.players if not player.alive)
    if not mediums or not ghosts:
        return None
    # A jailed Medium still hears the dead but can only talk to the Jailor.
    speaking = tuple(seat for seat in mediums if seat != state.prisoner)
    return Channel(
        name="dead",
        speakers=ghosts + speaking,
        hearers=frozenset(ghosts + mediums),
        aliases=dict.fromkeys(mediums, "Medium"),
    )


def _seance(state: GameState) -> Channel | None:
    seance = state.seance
    if seance is None or not state.players[seance.target].alive:
        return None
    both = (seance.medium, seance.target)
    return Channel(name="seance", speakers=both, hearers=frozenset(both), aliases={seance.medium: "Medium"})
