"""Acts by which the town decides: nominations, ballots, and bids for the floor."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.acts.spec import Act, ActSpec, Form, Offer
from mac_runner.environments.town_of_salem.events import EventKind, public
from mac_runner.environments.town_of_salem.roles import ROLES, Changed
from mac_runner.environments.town_of_salem.roles.base import others
from mac_runner.environments.town_of_salem.rounds import BID_MAX
from mac_runner.environments.town_of_salem.state import Ballot, DiscussionMode, GameState, Phase, Player
from mac_runner.environments.town_of_salem.trials import open_trial


def _offer_vote(state: GameState, player: Player) -> Offer | None:
    if not player.alive or state.phase is not Phase.VOTING:
        return None
    standing = state.votes.get(player.seat)
    targets = tuple(seat for seat in others(state, player) if seat != standing)
    return Offer(verb="vote", targets=targets) if targets else None


def _vote(state: GameState, act: Act) -> Changed:
    (target,) = act.targets
    state = replace(state, votes={**state.votes, act.seat: target})
    count = _weight_against(state, target)
    event = public(
        state,
        EventKind.VOTE,
        player=state.players[act.seat].name,
        target=state.players[target].name,
        count=count,
        needed=state.votes_needed,
    )
    return try_if_enough(Changed(state, (event,)), target)


def _weight_against(state: GameState, target: int) -> int:
    """What the standing votes for a player weigh together."""
    voters = (state.players[seat] for seat, vote in state.votes.items() if vote == target)
    return sum(ROLES[voter.role].votes(voter) for voter in voters)


def try_if_enough(changed: Changed, target: int) -> Changed:
    """Put a player on trial when the standing votes have come to weigh enough."""
    if _weight_against(changed.state, target) < changed.state.votes_needed:
        return changed
    trial = open_trial(changed.state, target)
    return Changed(trial.state, changed.events + trial.events)


def _offer_unvote(state: GameState, player: Player) -> Offer | None:
    return Offer(verb="unvote") if state.phase is Phase.VOTING and player.seat in state.votes else None


def _unvote(state: GameState, act: Act) -> Changed:
    left = {seat: vote for seat, vote in state.votes.items() if seat != act.seat}
    event = public(
        state,
        EventKind.UNVOTE,
        player=state.players[act.seat].name,
        target=state.players[state.votes[act.seat]].name,
    )
    return Changed(replace(state, votes=left), (event,))


def _offer_ballot(state: GameState, player: Player) -> Offer | None:
    if state.phase is not Phase.JUDGEMENT or not player.alive or player.seat == state.accused:
        return None
    return Offer(verb="ballot", choices=tuple(Ballot))


def _cast(state: GameState, act: Act) -> Changed:
    return Changed(replace(state, ballots={**state.ballots, act.seat: Ballot(act.choice)}))


def _offer_bid(state: GameState, player: Player) -> Offer | None:
    # Who may not speak has no use for the floor.
    if state.phase is not Phase.BIDDING or not player.alive or player.is_blackmailed:
        return None
    return Offer(verb="bid", choices=tuple(str(bid) for bid in range(BID_MAX + 1)))


def _bid(state: GameState, act: Act) -> Changed:
    return Changed(replace(state, bids={**state.bids, act.seat: int(act.choice)}))


SPECS = (
    ActSpec(
        verb="vote",
        form=Form.NAME,
        help="vote to put that player on trial; a new vote replaces your standing one",
        offer=_offer_vote,
        perform=_vote,
    ),
    ActSpec(verb="unvote", form=Form.BARE, help="take back your standing vote", offer=_offer_unvote, perform=_unvote),
    ActSpec(
        verb="ballot",
        form=Form.CHOICE,
        help="judge the accused: guilty, innocent or abstain",
        offer=_offer_ballot,
        perform=_cast,
        example_choice=Ballot.GUILTY,
    ),
    ActSpec(
        verb="bid",
        form=Form.CHOICE,
        help=f"bid for the floor, from 0 (let others speak) to {BID_MAX} (it cannot wait)",
        offer=_offer_bid,
        perform=_bid,
        example_choice="2",
        is_played=lambda options: options.discussion_mode == DiscussionMode.BIDDING,
    ),
)
"""In the order in which a prompt lists them."""
