"""The rules of the game as one pure function: `apply(state, move) -> (state, events)`.

A move is an Act of one seat, EndRound when all seats of the round have answered, or Cap. Nothing here reads a clock, a
file or a generator of its own: chance is derived from the game's seed and the purpose of the draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from mac_runner.environments.town_of_salem.model.events import EventKind, Events, private, public, team_event
from mac_runner.environments.town_of_salem.model.role import Changed
from mac_runner.environments.town_of_salem.model.state import TEAMS, GameState, Options, Phase, Player, Result
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.rules.acts import (
    ACTS,
    CHOICE,
    SECOND,
    TARGET,
    Act,
    ActSpec,
    Offer,
    may_speak_beside,
    offers,
)
from mac_runner.environments.town_of_salem.rules.calendar import end_game, end_round, open_round
from mac_runner.environments.town_of_salem.rules.lobbies import slot_name


class IllegalActError(Exception):
    """An act the rules do not allow now; the text explains why to the player."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Words to all that a seat says together with its act, just before it; they use up no turn."""

    act: Act


@dataclass(frozen=True, slots=True)
class EndRound:
    """All seats of this round have answered."""


@dataclass(frozen=True, slots=True)
class Cap:
    """The game has cost all it may: it ends here, and counts as capped."""

    reason: str


Move: TypeAlias = Act | Beside | EndRound | Cap


def new_game(
    *,
    seed: int,
    names: Sequence[str],
    roles: Sequence[str],
    lobby: Sequence[str],
    options: Options,
    speak_after: Mapping[int, frozenset[int]] | None = None,
) -> Changed:
    """Seat `names`, deal `roles` (ids, by seat) and open the greeting. `lobby` is the public list of slots."""
    players = tuple(
        Player(
            seat=seat,
            name=name,
            role=role,
            dealt=role,
            faction=ROLES[role].faction,
            uses=ROLES[role].starting_uses(options),
        )
        for seat, (name, role) in enumerate(zip(names, roles, strict=True))
    )
    state = GameState(
        seed=seed,
        options=options,
        lobby=tuple(lobby),
        players=players,
        speak_after=speak_after or {},
        round=-1,
    )
    for player in players:
        state = state.with_player(ROLES[player.role].deal(state, player))
    greeters = range(len(players)) if options.greeting_rounds else ()
    state = open_round(state, Phase.GREETING, greeters, is_first=True)
    return Changed(state, _opening_events(state))


def _opening_events(state: GameState) -> Events:
    names = [player.name for player in state.players]
    lobby = [slot_name(slot).lower() for slot in state.lobby]
    events = [public(state, EventKind.GAME_START, players=list(names), lobby=list(lobby))]
    for player in state.players:
        events.append(private(state, EventKind.ROLE_CARD, (player.seat,), role=ROLES[player.role].name))
        if player.quarry is not None:
            quarry = state.players[player.quarry].name
            events.append(private(state, EventKind.QUARRY, (player.seat,), target=quarry))
    for faction in TEAMS:
        team = [player for player in state.players if player.faction is faction]
        if len(team) > 1:
            events.append(team_event(state, team))
    return tuple(events)


def check(state: GameState, act: Act) -> Offer:
    """The offer an act takes up. Raises IllegalActError with the reason when it is not legal now."""
    if act.seat not in state.order:
        raise IllegalActError("it is not your turn")
    spec = ACTS.get(act.verb)
    offer = None if spec is None else spec.offer(state, state.players[act.seat])
    if spec is None or offer is None:
        legal = ", ".join(offer.verb for offer in offers(state, act.seat))
        raise IllegalActError(f"{act.verb} cannot be chosen now; you may choose: {legal}")
    if SECOND in spec.slots:
        _check_pair(state, act, offer)
    elif TARGET in spec.slots:
        if len(act.targets) != 1 or act.targets[0] not in offer.targets:
            names = ", ".join(state.players[seat].name for seat in offer.targets)
            raise IllegalActError(f"{act.verb} must name one of these players: {names}")
    elif act.targets:
        raise IllegalActError(f"{act.verb} takes no player")
    if act.choice not in offer.choices and (act.choice or CHOICE in spec.slots):
        raise IllegalActError(_unknown_choice(spec, offer))
    return offer


def check_beside(state: GameState, act: Act) -> None:
    """Raises IllegalActError with the reason when these words cannot be said together with an act now."""
    if act.seat not in state.order or state.has_answered(act.seat):
        raise IllegalActError("it is not your turn")
    if act.verb != "speak" or not may_speak_beside(state, act.seat):
        raise IllegalActError(f"{act.verb} cannot be added now; give the act alone")
    if act.choice:
        raise IllegalActError("words said together with an act are heard by all; name no channel")


def _check_pair(state: GameState, act: Act, offer: Offer) -> None:
    if len(act.targets) != 2:
        raise IllegalActError(f"{act.verb} must name two players")
    for which, seat, allowed in zip(("first", "second"), act.targets, (offer.targets, offer.seconds), strict=True):
        if seat not in allowed:
            names = ", ".join(state.players[seat].name for seat in allowed)
            raise IllegalActError(f"the {which} player of {act.verb} must be one of: {names}")


def _unknown_choice(spec: ActSpec, offer: Offer) -> str:
    if CHOICE in spec.slots:
        return f"{spec.verb} must be one of: {', '.join(offer.choices)}"
    # Words for a closed channel must not reach all players.
    channels = f"you may use: {', '.join(offer.choices)}" if offer.choices else "name none"
    return f"there is no such channel now; {channels}"


def apply(state: GameState, move: Move) -> Changed:
    """Make one move. Raises IllegalActError and changes nothing when the rules do not allow it."""
    match move:
        case EndRound():
            return end_round(state)
        case Cap(reason):
            return end_game(state, Result(ending="capped", reason=reason))
        case Beside(act):
            check_beside(state, act)
            return ACTS[act.verb].perform(state, act)
        case Act():
            return _apply_act(state, move)
    assert_never(move)


def _apply_act(state: GameState, act: Act) -> Changed:
    spec = ACTS.get(act.verb)
    if spec is not None and not spec.is_side_act and act.seat in state.order and state.has_answered(act.seat):
        raise IllegalActError("you have already acted in this round")
    check(state, act)
    spec = ACTS[act.verb]
    changed = spec.perform(state, act)
    if spec.is_side_act or changed.state.round != state.round:
        return changed
    is_silent = changed.state.is_silent and act.verb == "wait"
    return Changed(changed.state.answered(act.seat, is_silent=is_silent), changed.events)


def validate(state: GameState) -> None:
    """Re-derive every invariant of a state; AssertionError names the one that is broken."""
    living = {player.seat for player in state.living}
    for seat, player in enumerate(state.players):
        assert player.seat == seat, "seats are numbered in order"
        assert player.faction is ROLES[player.role].faction, f"{player.name}'s faction is that of the role"
        assert all(left >= 0 for left in player.uses.values()), f"{player.name} has no use below zero"
        assert set(player.uses) == set(ROLES[player.role].starting_uses(state.options)), (
            f"{player.name} counts the role's uses"
        )
    assert len({player.name for player in state.players}) == len(state.players), "names are unique"
    assert len(set(state.order)) == len(state.order), "no seat is asked twice in a round"
    assert state.acted <= set(state.order), "only those asked have acted"
    assert all(seat in living and target in living for seat, target in state.votes.items()), "the living vote"
    assert all(seat != target for seat, target in state.votes.items()), "no player votes for themselves"
    assert not state.votes or state.phase is Phase.VOTING, "there are votes during voting only"
    assert all(seat in living and seat != state.accused for seat in state.ballots), "the living judge others"
    on_stand = state.phase in (Phase.DEFENCE, Phase.JUDGEMENT, Phase.LAST_WORDS)
    assert (state.accused is not None) == on_stand, "there is an accused exactly during a trial"
    assert not state.bids or state.phase is Phase.BIDDING, "there are bids while the floor is bid for only"
    assert not state.is_lagged or set(state.turns_left) == set(state.order), "those with turns left are asked"
    assert all(left > 0 for left in state.turns_left.values()), "a seat without turns left is not asked"
    assert state.trials <= state.options.trials_per_day, "no more trials than a day allows"
    assert state.prisoner is None or state.phase.is_night, "prisoners are held by night only"
    assert not state.deeds or state.phase is Phase.NIGHT, "actions are chosen at night"
    assert len({action.seat for action in state.deeds}) == len(state.deeds), "one action a seat"
    assert (state.result is not None) == (state.phase is Phase.OVER), "a game has a result when it is over"
    unique = [player.role for player in state.living if ROLES[player.role].is_unique]
    assert len(set(unique)) == len(unique), "a unique role has one living holder at most"
    assert state.prisoner is None or state.keeper is not None, "a prisoner has a keeper"
