"""The calendar: which round follows which, and what dawn brings (rules, section 4).

`end_round` is called when everybody asked in a round has answered. It opens the next round, and on the way does what
happens between two rounds: the verdict and the lynch (`trials`), nightfall, the night, the dawn, the end of the game.
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.deaths import after_deaths, announcement, end_if_over
from mac_runner.environments.town_of_salem.events import EventKind, public
from mac_runner.environments.town_of_salem.night import resolve
from mac_runner.environments.town_of_salem.nightfall import dusk, open_night
from mac_runner.environments.town_of_salem.roles import ROLES, Changed, DayAbility, joined
from mac_runner.environments.town_of_salem.rounds import next_of_discussion, open_discussion, open_round
from mac_runner.environments.town_of_salem.state import GameState, Phase
from mac_runner.environments.town_of_salem.trials import lynch, open_voting, verdict
from mac_runner.environments.town_of_salem.victory import QUIET_FROM_DAY


def end_round(state: GameState) -> Changed:
    """Go on after a round in which everybody has answered."""
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
    told = tuple(event for event in night.events if event.audience is not None)
    news = (event for event in night.events if event.audience is None)
    announced += [replace(event, day=state.day, phase=state.phase) for event in news]
    is_quiet = not has_changed and not state.had_change and state.day > QUIET_FROM_DAY
    state = replace(state, quiet_cycles=state.quiet_cycles + 1 if is_quiet else 0, had_change=False)
    after = after_deaths(state, dead)
    opened = end_if_over(after.state) or Changed(open_discussion(after.state, _day_speakers(after.state)))
    return joined(Changed(state, told), Changed(state, tuple(announced)), after, opened)


def _day_speakers(state: GameState) -> list[int]:
    """The living, and those dead whose role lets them choose something by day."""
    if state.options.discussion_rounds == 0:
        return []
    return [
        player.seat
        for player in state.players
        if player.alive
        or any(
            isinstance(ability, DayAbility) and ability.offer(state, player) is not None
            for ability in ROLES[player.role].abilities
        )
    ]
