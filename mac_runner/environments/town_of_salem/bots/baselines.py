"""Scripted players that show what words are worth: each leaves out a part of the heuristic player's.

What they vote, judge and do at night is the heuristic player's choice, from what they see.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from mac_runner.environments.town_of_salem.bots.policies import play_to_win
from mac_runner.environments.town_of_salem.bots.statements import write
from mac_runner.environments.town_of_salem.model.state import TEAMS, Faction, Phase
from mac_runner.environments.town_of_salem.view.knowledge import SeatView

_WORDS: Final = frozenset({"speak", "whisper", "will", "death_note"})
"""The acts that others hear or read."""


def play_in_silence(view: object, chance: Random) -> str:
    """One reply without a word to anybody."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    if view.phase is Phase.NIGHT_CHAT:
        return write("wait", thought="I say nothing.")
    return play_to_win(_without_words(view), chance)


def play_without_lies(view: object, chance: Random) -> str:
    """One reply in which nothing is a lie: the Town talks, and all others talk to their own team alone."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    if view.role.faction is Faction.TOWN or _hears_team_alone(view):
        return play_to_win(view, chance)
    return play_in_silence(view, chance)


def _without_words(view: SeatView) -> SeatView:
    return replace(view, choices=tuple(choice for choice in view.choices if choice.verb not in _WORDS))


def _hears_team_alone(view: SeatView) -> bool:
    """Whether what it says now goes to its team."""
    channels = next((choice.choices for choice in view.choices if choice.verb == "speak"), ())
    return view.phase is Phase.NIGHT_CHAT and channels[:1] == (view.role.faction.value,) and view.role.faction in TEAMS
