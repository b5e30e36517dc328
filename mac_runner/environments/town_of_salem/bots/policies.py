"""The scripted players: functions from a seat's view and a source of chance to a reply.

`play_at_random` is uniform over its legal acts. `play_to_win` plays by simple rules, from what its seat may know. The
Town shares findings, believes proven words, votes for the most suspicious and protects those who know. The Mafia
kills those who know, keeps quiet, and lies when accused.

Two show what words are worth, and leave out a part of them: what `play_in_silence` and `play_without_lies` vote, judge
and do at night is the choice of `play_to_win`, from what they see.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from mac_runner.environments.town_of_salem.bots.seat import Seat
from mac_runner.environments.town_of_salem.bots.statements import write
from mac_runner.environments.town_of_salem.bots.tactics import use
from mac_runner.environments.town_of_salem.bots.talk import bid, chat, defence, discuss, greet, use_the_day
from mac_runner.environments.town_of_salem.model.state import TEAMS, Ballot, Faction, Phase
from mac_runner.environments.town_of_salem.roles import NightAbility
from mac_runner.environments.town_of_salem.rules.acts import ACTS
from mac_runner.environments.town_of_salem.seat.knowledge import SeatView

_DEATH_NOTE = "Nobody is safe in this town."


def play_to_win(view: object, chance: Random) -> str:
    """One reply."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    seat = Seat(view, chance)
    match view.phase:
        case Phase.GREETING:
            return greet(seat)
        case Phase.NIGHT_CHAT:
            return chat(seat)
        case Phase.NIGHT:
            return act_at_night(seat)
        case Phase.JUDGEMENT:
            return judge(seat)
        case Phase.VOTING:
            return use_the_day(seat) or vote(seat)
        case Phase.DEFENCE | Phase.LAST_WORDS:
            return seat.say(defence(seat), "I must convince them.")
        case Phase.BIDDING:
            return use_the_day(seat) or bid(seat)
        case _:
            return use_the_day(seat) or discuss(seat)


def vote(seat: Seat) -> str:
    """A vote, unless its vote already says so."""
    if "vote" not in seat.choices:
        return write("wait", thought="I have no vote to give.")
    target = _wanted(seat)
    if target is None or target not in seat.choices["vote"].targets:
        return write("wait", thought="Nobody else I would vote for.", will=seat.will())
    return write("vote", target=target, thought=f"I want {target} on trial.", will=seat.will())


def _wanted(seat: Seat) -> str | None:
    if seat.quarry is not None:
        return seat.quarry
    if seat.is_hostile:
        return _scapegoat(seat)
    found = seat.beliefs.most_suspicious()
    return found[0] if found is not None and found[1] >= seat.enough else None


def _scapegoat(seat: Seat) -> str | None:
    """The one outside its team that others vote for, else an accuser, else the most suspicious."""
    outside = [target for target in seat.view.votes.values() if target not in seat.view.team]
    if outside:
        return max(dict.fromkeys(outside), key=outside.count)
    accusers = [name for name in seat.accusers() if name not in seat.view.team]
    if accusers:
        return accusers[0]
    found = [(doubt, name) for name, doubt in seat.beliefs.suspicion.items() if name not in seat.view.team]
    doubt, name = max(found, default=(0.0, ""))
    return name if doubt >= seat.enough else None


def judge(seat: Seat) -> str:
    """A ballot on the accused."""
    accused = seat.view.accused or ""
    if seat.is_hostile:
        ballot = Ballot.INNOCENT if accused in seat.view.team else Ballot.GUILTY
    elif accused == seat.quarry:
        ballot = Ballot.GUILTY
    else:
        doubt = seat.beliefs.suspicion.get(accused, 0.0)
        ballot = Ballot.GUILTY if doubt >= seat.enough else Ballot.INNOCENT
    return write("ballot", choice=ballot.value, thought=f"{accused}: {ballot}.")


def act_at_night(seat: Seat) -> str:
    """The first ability of its role that has something to do, or wait."""
    used = use(seat, NightAbility)
    if used is None:
        return write("wait", thought="There is nothing worth doing tonight.", will=seat.will())
    verb, aim = used
    note = "" if seat.view.death_note or "death_note" not in seat.choices else _DEATH_NOTE
    thought = f"Tonight I choose {aim.target}." if aim.target else "Tonight is the night for it."
    return write(verb, **aim._replace(thought=thought)._asdict(), will=seat.will(), death_note=note)


def play_at_random(view: object, chance: Random) -> str:
    """Draw one legal act."""
    if not isinstance(view, SeatView):
        raise TypeError(f"a player of this game needs a SeatView, not {type(view).__name__}")
    options = [
        (choice.verb, named)
        for choice in view.choices
        if not ACTS[choice.verb].is_side_act
        for named in choice.combinations()
    ]
    verb, named = chance.choice(options)
    # Words that mean nothing: the random player is the baseline without talk.
    words = f"I am {view.name}, and I look at {chance.choice(view.living)}."
    return write(verb, **named, text=words)


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
