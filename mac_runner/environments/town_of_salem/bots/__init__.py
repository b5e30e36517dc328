"""Scripted players: they see what their seat may see, and answer in the markup a model answers in.

`random` is uniform over its legal acts. `heuristic` plays to win by simple rules, from what its seat may know. The
Town shares findings, believes proven words, votes for the most suspicious and protects those who know. The Mafia
kills those who know, keeps quiet, and lies when accused.

Two show what words are worth, and leave out a part of them: what `silent` and `honest` vote, judge and do at night is
the choice of `heuristic`, from what they see.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from random import Random
from types import MappingProxyType
from typing import Final

from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.bots.seat import Seat
from mac_runner.environments.town_of_salem.bots.speech import line, write
from mac_runner.environments.town_of_salem.bots.tactics import use
from mac_runner.environments.town_of_salem.bots.talk import bid, chat, defend, discuss, greet, use_the_day
from mac_runner.environments.town_of_salem.model.state import TEAMS, Ballot, Faction, Phase
from mac_runner.environments.town_of_salem.roles import NightAbility
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView

__all__ = ["POLICIES"]

_WORDS: Final = frozenset({"speak", "whisper", "will", "death_note"})
"""The acts that others hear or read."""


def _of_a_seat(play: Callable[[SeatView, Random], str]) -> Policy:
    """The player, who refuses a view of another game."""

    @wraps(play)
    def checked(view: object, chance: Random) -> str:
        if not isinstance(view, SeatView):
            raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
        return play(view, chance)

    return checked


def _play_to_win(view: SeatView, chance: Random) -> str:
    seat = Seat(view, chance)
    match view.phase:
        case Phase.GREETING:
            return greet(seat)
        case Phase.NIGHT_CHAT:
            return chat(seat)
        case Phase.NIGHT:
            return _act_at_night(seat)
        case Phase.JUDGEMENT:
            return _judge(seat)
        case Phase.VOTING:
            return use_the_day(seat) or _vote(seat)
        case Phase.DEFENCE | Phase.LAST_WORDS:
            return defend(seat)
        case Phase.BIDDING:
            return use_the_day(seat) or bid(seat)
        case _:
            return use_the_day(seat) or discuss(seat)


def _vote(seat: Seat) -> str:
    """A vote, unless its vote already says so."""
    if "vote" not in seat.choices:
        return write("wait", thought=line("no vote"))
    target = _wanted(seat)
    if target is None or target not in seat.choices["vote"].targets:
        return seat.say([], line("no target"))
    return write("vote", target=target, thought=line("vote", name=target), will=seat.will())


def _wanted(seat: Seat) -> str | None:
    if seat.quarry is not None:
        return seat.quarry
    if seat.is_hostile:
        return _scapegoat(seat)
    worst = seat.most_suspicious()
    return worst if seat.doubt(worst) >= seat.enough else None


def _scapegoat(seat: Seat) -> str | None:
    """The one outside its team that others vote for, else an accuser, else the most suspicious."""
    team = seat.view.team
    outside = [target for target in seat.view.votes.values() if target not in team]
    if outside:
        return max(dict.fromkeys(outside), key=outside.count)
    accusers = [name for name in seat.accusers() if name not in team]
    if accusers:
        return accusers[0]
    found = [(doubt, name) for name, doubt in seat.suspicion.items() if name not in team]
    doubt, name = max(found, default=(0.0, ""))
    return name if doubt >= seat.enough else None


def _judge(seat: Seat) -> str:
    """A ballot on the accused."""
    accused = seat.view.accused or ""
    if seat.is_hostile:
        is_guilty = accused not in seat.view.team
    else:
        is_guilty = accused == seat.quarry or seat.doubt(accused) >= seat.enough
    ballot = Ballot.GUILTY if is_guilty else Ballot.INNOCENT
    return write("ballot", choice=ballot.value, thought=line("ballot", name=accused, ballot=ballot))


def _act_at_night(seat: Seat) -> str:
    """The first ability of its role that has something to do, or wait."""
    used = use(seat, NightAbility)
    if used is None:
        return write("wait", thought=line("nothing to do"), will=seat.will())
    verb, aim = used
    note = "" if seat.view.death_note or "death_note" not in seat.choices else line("death note")
    thought = line("night", name=aim.target) if aim.target else line("night without target")
    return write(verb, **aim._replace(thought=thought)._asdict(), will=seat.will(), death_note=note)


def _play_at_random(view: SeatView, chance: Random) -> str:
    """Draw one legal act."""
    options = [
        (choice.verb, named)
        for choice in view.choices
        if not ACTS[choice.verb].is_side_act
        for named in choice.combinations()
    ]
    verb, named = chance.choice(options)
    # Words that mean nothing: the random player is the baseline without talk.
    words = line("at random", me=view.name, name=chance.choice(view.living))
    return write(verb, **named, text=words)


def _play_in_silence(view: SeatView, chance: Random) -> str:
    """One reply without a word to anybody."""
    if view.phase is Phase.NIGHT_CHAT:
        return write("wait", thought=line("silence"))
    choices = tuple(choice for choice in view.choices if choice.verb not in _WORDS)
    return _play_to_win(replace(view, choices=choices), chance)


def _play_without_lies(view: SeatView, chance: Random) -> str:
    """One reply in which nothing is a lie: the Town talks, and all others talk to their own team alone."""
    channels = next((choice.choices for choice in view.choices if choice.verb == "speak"), ())
    is_among_team = channels[:1] == (view.role.faction.value,) and view.role.faction in TEAMS
    is_open = view.role.faction is Faction.TOWN or (view.phase is Phase.NIGHT_CHAT and is_among_team)
    return (_play_to_win if is_open else _play_in_silence)(view, chance)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        "heuristic": _of_a_seat(_play_to_win),
        "random": _of_a_seat(_play_at_random),
        "silent": _of_a_seat(_play_in_silence),
        "honest": _of_a_seat(_play_without_lies),
    }
)
"""Name in YAML to scripted player."""
