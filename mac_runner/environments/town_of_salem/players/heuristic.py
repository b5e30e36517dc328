"""The heuristic player: plays to win by simple rules, from what its seat may know.

The Town shares findings, believes proven words, votes for the most suspicious and protects those who know. The
Mafia kills those who know, keeps quiet, and lies when accused. An Executioner accuses his target; a Jester asks for it.
What it does is decided phase by phase: in `talk`, `voting`, `by_day` and `by_night`.
"""

from __future__ import annotations

from random import Random

from mac_runner.environments.town_of_salem.knowledge import SeatView
from mac_runner.environments.town_of_salem.players.by_day import use_the_day
from mac_runner.environments.town_of_salem.players.by_night import act_at_night
from mac_runner.environments.town_of_salem.players.seat import Seat
from mac_runner.environments.town_of_salem.players.talk import bid, chat, defence, discuss, greet
from mac_runner.environments.town_of_salem.players.voting import judge, vote
from mac_runner.environments.town_of_salem.state import Phase


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
