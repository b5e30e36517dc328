"""Rounds: how one is opened, and the rounds of a discussion in each mode of taking turns.

The mode governs the discussion alone. In greeting and voting one player speaks after another, in an order drawn for
each round, or in seat order where the mode is `seat_order`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from mac_runner.environments.base import gated
from mac_runner.environments.town_of_salem.model.state import DiscussionMode, GameState, Options, Phase

BID_MAX = 4


def open_round(state: GameState, phase: Phase, seats: Iterable[int], *, is_first: bool) -> GameState:
    """Ask `seats` in a new round; by day in the order of the mode, respecting `speak_after`."""
    order = list(seats)
    if phase in (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING):
        if _is_drawn(state.options, phase):
            state.chance("order", state.round + 1).shuffle(order)
        order = gated(order, state.speak_after) if state.speak_after else order
    return replace(
        state,
        phase=phase,
        round=state.round + 1,
        round_in_phase=1 if is_first else state.round_in_phase + 1,
        order=tuple(order),
        acted=frozenset(),
        is_silent=True,
    )


def _is_drawn(options: Options, phase: Phase) -> bool:
    match options.discussion_mode:
        case DiscussionMode.RANDOM:
            return True
        case DiscussionMode.SEAT_ORDER:
            return False
        case _:
            return phase is not Phase.DISCUSSION


def open_discussion(state: GameState, seats: Iterable[int]) -> GameState:
    """Begin the talk of a day among `seats`: the living, and the dead who can choose something by day."""
    seats = tuple(seats)
    match state.options.discussion_mode:
        case DiscussionMode.BIDDING:
            state = replace(state, floors_left=state.options.discussion_floors, named=frozenset())
            return open_round(state, Phase.BIDDING, seats, is_first=True)
        case DiscussionMode.INFORMATION_LAG:
            rounds = state.options.discussion_rounds
            # The dead have one choice to make and need one turn.
            state = replace(state, turns_left={seat: rounds if state.players[seat].alive else 1 for seat in seats})
    return open_round(state, Phase.DISCUSSION, seats, is_first=True)


def next_of_discussion(state: GameState) -> GameState | None:
    """The round that follows in a discussion; None: the talk is over."""
    match state.options.discussion_mode:
        case DiscussionMode.BIDDING:
            return _give_floor(state) if state.phase is Phase.BIDDING else _ask_for_bids(state)
        case DiscussionMode.INFORMATION_LAG:
            spent = {seat: left - (seat in state.acted) for seat, left in state.turns_left.items()}
            left = {seat: turns for seat, turns in spent.items() if turns}
            state = replace(state, turns_left=left)
            return open_round(state, Phase.DISCUSSION, sorted(left), is_first=False) if left else None
        case _:
            is_over = state.round_in_phase >= state.options.discussion_rounds
            return None if is_over else open_round(state, Phase.DISCUSSION, state.living_seats, is_first=False)


def _ask_for_bids(state: GameState) -> GameState | None:
    return open_round(state, Phase.BIDDING, state.living_seats, is_first=False) if state.floors_left else None


def _give_floor(state: GameState) -> GameState | None:
    """The highest bidder speaks; among equals those the last words named go first, then one is drawn."""
    highest = max(state.bids.values(), default=0)
    if highest == 0:
        return None
    bidders = sorted(seat for seat, bid in state.bids.items() if bid == highest)
    candidates = [seat for seat in bidders if seat in state.named] or bidders
    speaker = state.chance("floor", state.round).choice(candidates)
    state = replace(state, bids={}, floors_left=state.floors_left - 1, named=frozenset())
    # Players count a bid and the words it was for as one round.
    floor = open_round(state, Phase.DISCUSSION, (speaker,), is_first=False)
    return replace(floor, round_in_phase=state.round_in_phase)


def named_in(state: GameState, speaker: int, text: str) -> frozenset[int]:
    """The living that `speaker` names in `text`."""
    return frozenset(
        player.seat
        for player in state.living
        if player.seat != speaker and re.search(rf"\b{re.escape(player.name)}\b", text, re.IGNORECASE)
    )


def turn_taking_rule(options: Options) -> str:
    """How the prompt explains the mode; "" for the usual one."""
    match options.discussion_mode:
        case DiscussionMode.SEAT_ORDER:
            return "Players speak in seat order."
        case DiscussionMode.SIMULTANEOUS:
            return "In a round of discussion all speak at once: no one hears the others before the round is over."
        case DiscussionMode.BIDDING:
            return (
                f"Instead of rounds of discussion, the floor is bid for, up to {options.discussion_floors} times a "
                f"day: all bid from 0 to {BID_MAX} at once, and only the highest bidder speaks. When no one bids more "
                "than 0, the discussion is over."
            )
        case DiscussionMode.INFORMATION_LAG:
            return (
                f"In a discussion, up to {options.speaking_slots} players prepare their words at the same time, and "
                "the others wait in a queue. Each player speaks as soon as they are ready. While you prepare your "
                "words, others may speak, and you hear them only at your next turn."
            )
        case _:
            return ""
