"""The calendar: how a game begins, which round follows which, with trials, nightfall and dawn between, and the end.

`end_round` is called when all seats of a round have answered. It opens the next round, and does what happens between
the two: the verdict and the lynch, nightfall, the night, the dawn, the end of the game (rules, sections 4, 5 and 13).

The mode of taking turns governs the discussion alone. In greeting and voting one player speaks after another, in an
order drawn for each round, or in seat order where the mode is `seat_order`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mac_runner.environments.base import gated
from mac_runner.environments.town_of_salem.model.events import (
    UNKNOWN_ROLE,
    Event,
    EventKind,
    Events,
    private,
    public,
)
from mac_runner.environments.town_of_salem.model.role import Ability, Changed, fellows, joined, team_event
from mac_runner.environments.town_of_salem.model.state import (
    LYNCH,
    TEAMS,
    Ballot,
    Death,
    Faction,
    GameState,
    Options,
    Phase,
    Player,
    Result,
)
from mac_runner.environments.town_of_salem.roles import ROLES, DayAbility, NightAbility
from mac_runner.environments.town_of_salem.roles.mafia import promote
from mac_runner.environments.town_of_salem.roles.town import JAILED, JAILING
from mac_runner.environments.town_of_salem.rules.lobbies import roles_in_play, slot_name
from mac_runner.environments.town_of_salem.rules.night import resolve
from mac_runner.types import JsonValue

BID_MAX = 4


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
            events.append(team_event(state, ROLES, team))
    return tuple(events)


def open_round(state: GameState, phase: Phase, seats: Iterable[int], *, is_first: bool) -> GameState:
    """Ask `seats` in a new round; by day in the order of the mode, respecting `speak_after`."""
    order = list(seats)
    if phase in (Phase.GREETING, Phase.DISCUSSION, Phase.VOTING):
        # Only where it names seat order does the mode govern more than the discussion.
        mode = state.options.discussion_mode
        is_talk = phase is Phase.DISCUSSION
        if mode == "random" or (mode != "seat_order" and not is_talk):
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


def open_discussion(state: GameState, seats: Iterable[int]) -> GameState:
    """Begin the talk of a day among `seats`: the living, and the dead who can choose something by day."""
    seats = tuple(seats)
    match state.options.discussion_mode:
        case "bidding":
            state = replace(state, floors_left=state.options.discussion_floors, named=frozenset())
            return open_round(state, Phase.BIDDING, seats, is_first=True)
        case "information_lag":
            rounds = state.options.discussion_rounds
            # The dead have one choice to make and need one turn.
            state = replace(state, turns_left={seat: rounds if state.players[seat].alive else 1 for seat in seats})
    return open_round(state, Phase.DISCUSSION, seats, is_first=True)


def next_of_discussion(state: GameState) -> GameState | None:
    """The round that follows in a discussion; None: the talk is over."""
    match state.options.discussion_mode:
        case "bidding":
            if state.phase is Phase.BIDDING:
                return _give_floor(state)
            is_over = not state.floors_left
            return None if is_over else open_round(state, Phase.BIDDING, state.living_seats, is_first=False)
        case "information_lag":
            spent = {seat: left - (seat in state.acted) for seat, left in state.turns_left.items()}
            left = {seat: turns for seat, turns in spent.items() if turns}
            state = replace(state, turns_left=left)
            return open_round(state, Phase.DISCUSSION, sorted(left), is_first=False) if left else None
        case _:
            is_over = state.round_in_phase >= state.options.discussion_rounds
            return None if is_over else open_round(state, Phase.DISCUSSION, state.living_seats, is_first=False)


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
        case "seat_order":
            return "Players speak in seat order."
        case "simultaneous":
            return "In a round of discussion all speak at once: no one hears the others before the round is over."
        case "bidding":
            return (
                f"Instead of rounds of discussion, the floor is bid for, up to {options.discussion_floors} times a "
                f"day: all bid from 0 to {BID_MAX} at once, and only the highest bidder speaks. When no one bids more "
                "than 0, the discussion is over."
            )
        case "information_lag":
            return (
                f"In a discussion, up to {options.speaking_slots} players prepare their words at the same time, and "
                "the others wait in a queue. Each player speaks as soon as they are ready. While you prepare your "
                "words, others may speak, and you hear them only at your next turn."
            )
        case _:
            return ""


# Two consecutive days and nights without a death or a change of role end the game, counted from this day on.
QUIET_FROM_DAY = 7
QUIET_CYCLES_MAX = 2


def result_now(state: GameState) -> Result | None:
    """The result if the game ends here; called at every dawn and after every lynch."""
    living = state.living
    if not living:
        return Result(ending="draw", reason="nobody is left alive")
    groups = {group for player in living if (group := ROLES[player.role].group) is not None}
    if not groups:
        return Result(ending="draw", reason="nobody is left who could win as a group")
    if len(groups) == 1 and not _holds_out(living):
        (winner,) = groups
        return Result(ending="win", reason="all who opposed them are dead", winners=(winner,))
    stalemate = _award(*living) if len(living) == 2 else None
    if stalemate is not None:
        return Result(ending="win", reason="nobody left can stop them", winners=(stalemate,))
    mafia = sum(player.faction is Faction.MAFIA for player in living)
    if state.options.mafia_parity and 2 * mafia >= len(living):
        return Result(ending="win", reason="they are as many as all others", winners=("mafia",))
    if state.quiet_cycles >= QUIET_CYCLES_MAX:
        return Result(ending="draw", reason=f"{QUIET_CYCLES_MAX} days and nights passed without a death")
    if state.day > state.options.max_days:
        return Result(ending="capped", reason=f"the limit of {state.options.max_days} days is reached")
    return None


def _holds_out(living: tuple[Player, ...]) -> bool:
    """Whether the Town still has an enemy without a group, and a member who can fight it."""
    is_opposed = any(ROLES[player.role].is_hostile_to_town for player in living)
    return is_opposed and any(ROLES[player.role].holds_out(player) for player in living)


def _award(one: Player, other: Player) -> str | None:
    """The group that wins when these two are left and play cannot decide between them."""
    for strong, weak in ((one, other), (other, one)):
        winner, loser = ROLES[strong.role], ROLES[weak.role]
        if winner.outlasts(loser) or loser.yields_to(weak, winner):
            return winner.group
    return None


def has_won(state: GameState, player: Player) -> bool:
    """Whether a player has won: with their group, dead or alive, or by a goal of their own."""
    winners = state.result.winners if state.result else ()
    role = ROLES[player.role]
    return role.group in winners or player.has_met_goal or role.has_won(state, player)


def announcement(state: GameState, victim: Player) -> Event:
    """What all players see of a body; never the killer's name."""
    death = victim.death
    if death is None:
        raise ValueError(f"{victim.name} is not dead")
    role = victim.shown_role
    will = victim.will if death.forged_will is None else death.forged_will
    return public(
        state,
        EventKind.DEATH,
        player=victim.name,
        role=UNKNOWN_ROLE if role is None else ROLES[role].name,
        causes=list(death.causes),
        will="" if death.is_cleaned or death.is_bloody else will,
        is_bloody=death.is_bloody and not death.is_cleaned,
        death_notes=[] if death.is_cleaned else list(death.notes),
    )


def after_deaths(state: GameState, fallen: Sequence[Player]) -> Changed:
    """What follows from deaths just announced: changes of role, then promotions in the Mafia."""
    events: Events = ()
    for seat in range(len(state.players)):
        player = state.players[seat]
        state, happened = ROLES[player.role].after_deaths(state, player)
        events += happened
    state, happened = promote(state, fallen)
    return Changed(state, events + happened)


def end_if_over(state: GameState) -> Changed | None:
    """The end of the game, if it has come to one."""
    result = result_now(state)
    return None if result is None else end_game(state, result)


def end_game(state: GameState, result: Result) -> Changed:
    """The game is over, with this result; one that costs too much may end in any round."""
    state = replace(
        state,
        keeper=None,
        prisoner=None,
        jail_choice=None,
        accused=None,
        votes={},
        ballots={},
        bids={},
        deeds=(),
    )
    event = public(state, EventKind.GAME_END, ending=result.ending, reason=result.reason, winners=list(result.winners))
    return Changed(replace(state, phase=Phase.OVER, order=(), acted=frozenset(), result=result), (event,))


def end_round(state: GameState) -> Changed:
    """Go on after a round in which all seats have answered."""
    match state.phase:
        case Phase.GREETING:
            if state.round_in_phase < state.options.greeting_rounds:
                return Changed(open_round(state, Phase.GREETING, state.living_seats, is_first=False))
            return dusk(state)
        case Phase.BIDDING | Phase.DISCUSSION:
            following = next_of_discussion(state)
            if following is not None:
                return Changed(following)
            state = replace(state, bids={}, turns_left={})
            return open_voting(replace(state, vote_rounds_left=state.options.vote_rounds, trials=0))
        case Phase.VOTING:
            left = state.vote_rounds_left - 1
            if left > 0 and not state.is_silent:
                return Changed(
                    open_round(replace(state, vote_rounds_left=left), Phase.VOTING, state.living_seats, is_first=False)
                )
            return dusk(state)
        case Phase.DEFENCE:
            judges = [seat for seat in state.living_seats if seat != state.accused]
            return Changed(open_round(state, Phase.JUDGEMENT, judges, is_first=True))
        case Phase.JUDGEMENT:
            return verdict(state)
        case Phase.LAST_WORDS:
            return lynch(state)
        case Phase.NIGHT_CHAT:
            if state.round_in_phase < state.options.night_chat_rounds:
                return Changed(open_round(state, Phase.NIGHT_CHAT, state.order, is_first=False))
            return Changed(open_night(state))
        case Phase.NIGHT:
            return _dawn(state)
        case Phase.OVER:
            raise ValueError("the game is over: there is no round to end")


def _dawn(state: GameState) -> Changed:
    """Resolve the night, announce it, and open the next day unless the game ends with it."""
    before = state.players
    night = resolve(state)
    state = replace(night.state, day=state.day + 1, phase=Phase.DISCUSSION, order=(), acted=frozenset())
    dead = [state.players[player.seat] for player in before if player.alive and not state.players[player.seat].alive]
    has_changed = any(
        (old.role, old.alive) != (new.role, new.alive) for old, new in zip(before, state.players, strict=True)
    )
    announced = [public(state, EventKind.DAY_START)]
    announced += [announcement(state, victim) for victim in dead] or [public(state, EventKind.NO_DEATH)]
    notices = tuple(event for event in night.events if event.audience is not None)
    news = (event for event in night.events if event.audience is None)
    announced += [replace(event, day=state.day, phase=state.phase) for event in news]
    is_quiet = not has_changed and not state.had_change and state.day > QUIET_FROM_DAY
    state = replace(state, quiet_cycles=state.quiet_cycles + 1 if is_quiet else 0, had_change=False)
    after = after_deaths(state, dead)
    opened = end_if_over(after.state) or Changed(open_discussion(after.state, _day_speakers(after.state)))
    return joined(Changed(state, notices), Changed(state, tuple(announced)), after, opened)


def _day_speakers(state: GameState) -> list[int]:
    """The living, and the dead who can choose something by day."""
    if state.options.discussion_rounds == 0:
        return []
    return [player.seat for player in state.players if player.alive or _is_offered(state, player, DayAbility)]


def _is_offered(state: GameState, player: Player, kind: type[Ability]) -> bool:
    """Whether a player can use an ability of this kind now."""
    return any(
        isinstance(ability, kind) and ability.offer(state, player) is not None
        for ability in ROLES[player.role].abilities
    )


def open_trial(state: GameState, accused: int) -> Changed:
    """Put a player on trial: votes are wiped, and the round of voting counts as used."""
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
    """Ask the living for their votes, in the first of the rounds left."""
    state = open_round(replace(state, votes={}, accused=None), Phase.VOTING, state.living_seats, is_first=True)
    event = public(state, EventKind.VOTING_START, needed=state.votes_needed, trials_left=_trials_left(state))
    return Changed(state, (event,))


def _trials_left(state: GameState) -> int:
    return state.options.trials_per_day - state.trials


def verdict(state: GameState) -> Changed:
    """Count the ballots: strictly more guilty than innocent condemn; none cast abstains (rules, section 5.5)."""
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
    """The condemned dies; night falls unless that ends the game."""
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


def dusk(state: GameState) -> Changed:
    """Take the prisoner, and open the private channels, or the night where there are none."""
    pair = (state.keeper, state.jail_choice)
    is_jailed = all(seat is not None and state.players[seat].alive for seat in pair)
    keeper, prisoner = pair if is_jailed else (None, None)
    state = replace(
        state,
        phase=Phase.NIGHT_CHAT,
        players=tuple(replace(one, is_blackmailed=False) if one.is_blackmailed else one for one in state.players),
        votes={},
        accused=None,
        keeper=keeper,
        prisoner=prisoner,
        jail_choice=None,
    )
    events: list[Event] = [public(state, EventKind.NIGHT_START)]
    if state.is_full_moon and any(role.minds_the_moon for role in roles_in_play(state.lobby)):
        events.append(public(state, EventKind.FULL_MOON))
    events += _jailing(state)
    if state.seance is not None and state.players[state.seance.target].alive:
        events.append(private(state, EventKind.SEANCE, (state.seance.target,)))
    waits = dict.fromkeys(answering(state), first_speakers(state))
    speakers = gated(sorted({seat for channel in channels(state) for seat in channel.speakers}), waits)
    if speakers and state.options.night_chat_rounds > 0:
        return Changed(open_round(state, Phase.NIGHT_CHAT, speakers, is_first=True), tuple(events))
    return Changed(open_night(state), tuple(events))


def _jailing(state: GameState) -> Events:
    if state.keeper is None or state.prisoner is None:
        return ()
    prisoner = state.players[state.prisoner]
    events: Events = (
        private(state, JAILING, (state.keeper,), prisoner=prisoner.name),
        private(state, JAILED, (prisoner.seat,)),
    )
    team = {*fellows(state, prisoner)} - {prisoner.seat}
    if prisoner.faction in TEAMS and team:
        events += (private(state, EventKind.TEAMMATE_JAILED, team, player=prisoner.name),)
    return events


def open_night(state: GameState) -> GameState:
    """Ask all who can choose something tonight, the haunting dead included."""
    state = replace(state, phase=Phase.NIGHT)
    seats = [player.seat for player in state.players if _is_offered(state, player, NightAbility)]
    return open_round(state, Phase.NIGHT, seats, is_first=True)


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
