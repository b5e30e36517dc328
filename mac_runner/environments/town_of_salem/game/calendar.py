"""The calendar: which round follows which, with trials, nightfall and dawn between (rules, sections 4 and 5).

`end_round` is called when all seats of a round have answered. It opens the next round, and does what happens between
the two: the verdict and the lynch, nightfall, the night, the dawn, the end of the game.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from mac_runner.environments.base import gated
from mac_runner.environments.town_of_salem.game.channels import answering, channels, first_speakers
from mac_runner.environments.town_of_salem.game.lobbies import roles_in_play
from mac_runner.environments.town_of_salem.game.rounds import next_of_discussion, open_discussion, open_round
from mac_runner.environments.town_of_salem.game.victory import QUIET_FROM_DAY, after_deaths, announcement, end_if_over
from mac_runner.environments.town_of_salem.model.events import Event, EventKind, Events, private, public
from mac_runner.environments.town_of_salem.model.role import Ability, Changed, joined
from mac_runner.environments.town_of_salem.model.state import LYNCH, TEAMS, Ballot, Death, GameState, Phase, Player
from mac_runner.environments.town_of_salem.night.resolution import resolve
from mac_runner.environments.town_of_salem.roles import ROLES, DayAbility, NightAbility
from mac_runner.environments.town_of_salem.roles.town_killing import JAILED, JAILING
from mac_runner.types import JsonValue


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
        players=tuple(_unmuted(player) for player in state.players),
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


def _unmuted(player: Player) -> Player:
    return replace(player, is_blackmailed=False) if player.is_blackmailed else player


def _jailing(state: GameState) -> Events:
    if state.keeper is None or state.prisoner is None:
        return ()
    prisoner = state.players[state.prisoner]
    events: Events = (
        private(state, JAILING, (state.keeper,), prisoner=prisoner.name),
        private(state, JAILED, (prisoner.seat,)),
    )
    team = [player.seat for player in state.living if player.faction is prisoner.faction and player != prisoner]
    if prisoner.faction in TEAMS and team:
        events += (private(state, EventKind.TEAMMATE_JAILED, team, player=prisoner.name),)
    return events


def open_night(state: GameState) -> GameState:
    """Ask all who can choose something tonight, the haunting dead included."""
    state = replace(state, phase=Phase.NIGHT)
    seats = [player.seat for player in state.players if _is_offered(state, player, NightAbility)]
    return open_round(state, Phase.NIGHT, seats, is_first=True)
