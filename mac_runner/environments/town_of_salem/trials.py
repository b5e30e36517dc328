"""Trials: from the vote that is enough to the verdict and the lynch (rules, section 5)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from mac_runner.environments.town_of_salem.deaths import after_deaths, announcement, end_if_over
from mac_runner.environments.town_of_salem.events import EventKind, Events, public
from mac_runner.environments.town_of_salem.nightfall import dusk
from mac_runner.environments.town_of_salem.roles import ROLES, Changed, joined
from mac_runner.environments.town_of_salem.rounds import open_round
from mac_runner.environments.town_of_salem.state import LYNCH, Ballot, Death, GameState, Phase
from mac_runner.types import JsonValue


def open_trial(state: GameState, accused: int) -> Changed:
    """Put a player on the stand: votes are wiped, and the vote round that nominated them counts as used."""
    state = replace(
        state,
        accused=accused,
        votes={},
        ballots={},
        trials=state.trials + 1,
        vote_rounds_left=max(1, state.vote_rounds_left - 1),
    )
    name = state.players[accused].name
    events: Events = (public(state, EventKind.TRIAL, accused=name, trial=state.trials),)
    if state.players[accused].is_blackmailed:
        events += (public(state, EventKind.BLACKMAILED_ON_STAND, accused=name),)
    return Changed(open_round(state, Phase.DEFENCE, (accused,), is_first=True), events)


def open_voting(state: GameState) -> Changed:
    """Ask the living for their votes, in the first round of what is left of the voting."""
    state = open_round(replace(state, votes={}, accused=None), Phase.VOTING, state.living_seats, is_first=True)
    event = public(state, EventKind.VOTING_START, needed=state.votes_needed, trials_left=_trials_left(state))
    return Changed(state, (event,))


def _trials_left(state: GameState) -> int:
    return state.options.trials_per_day - state.trials


def verdict(state: GameState) -> Changed:
    """Count the ballots: strictly more guilty than innocent condemns; who cast none abstains (rules, section 5.5)."""
    if state.accused is None:
        raise ValueError("a judgement without an accused")
    accused = state.players[state.accused]
    judges = (seat for seat in state.living_seats if seat != accused.seat)
    state = replace(state, ballots={seat: state.ballots.get(seat, Ballot.ABSTAIN) for seat in judges})
    by_ballot: dict[str, JsonValue] = {
        ballot.value: [state.players[seat].name for seat in sorted(state.ballots) if state.ballots[seat] is ballot]
        for ballot in Ballot
    }
    cast: Counter[Ballot] = Counter()
    for seat, ballot in state.ballots.items():
        cast[ballot] += ROLES[state.players[seat].role].votes(state.players[seat])
    is_guilty = cast[Ballot.GUILTY] > cast[Ballot.INNOCENT]
    events = (
        public(state, EventKind.BALLOTS, **by_ballot),
        public(state, EventKind.VERDICT, accused=accused.name, is_guilty=is_guilty),
    )
    if is_guilty:
        return Changed(open_round(state, Phase.LAST_WORDS, (accused.seat,), is_first=True), events)
    state = replace(state, accused=None, ballots={})
    after = open_voting(state) if _trials_left(state) > 0 else dusk(state)
    return Changed(after.state, events + after.events)


def lynch(state: GameState) -> Changed:
    """The condemned dies, and unless that ends the game night falls."""
    if state.accused is None:
        raise ValueError("a lynch without an accused")
    death = Death(day=state.day, at_night=False, causes=(LYNCH.name,))
    victim = replace(state.players[state.accused], death=death)
    state = replace(state.with_player(victim), had_change=True)
    events: Events = (announcement(state, victim),)
    lynched = ROLES[victim.role].when_lynched(state, victim)
    after = after_deaths(lynched.state, (victim,))
    state = replace(after.state, accused=None, ballots={})
    ended = end_if_over(state)
    return joined(Changed(state, events), lynched, after, ended or dusk(state))
