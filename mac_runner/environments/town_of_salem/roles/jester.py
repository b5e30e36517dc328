"""Jester: wants to be lynched, and takes one of his judges along (rules, section 11)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, private
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Changed,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
)
from mac_runner.environments.town_of_salem.state import Ballot, DeathCause, Deed, Faction, GameState, Haunting, Player

HAUNTED = DeathCause("jester", "taken by a Jester's ghost")

HAUNT = "haunt"


def _haunting(state: GameState, seat: int) -> Haunting | None:
    return next((haunting for haunting in state.hauntings if haunting.seat == seat), None)


def _candidates(state: GameState, player: Player) -> tuple[int, ...]:
    haunting = _haunting(state, player.seat)
    return () if haunting is None else tuple(seat for seat in haunting.candidates if state.players[seat].alive)


def _earn_haunting(state: GameState, player: Player) -> Changed:
    guilty = tuple(sorted(seat for seat, ballot in state.ballots.items() if ballot is Ballot.GUILTY))
    pool = guilty
    if state.options.haunt_pool == "guilty_or_abstain":
        pool = tuple(sorted(seat for seat, ballot in state.ballots.items() if ballot is not Ballot.INNOCENT))
    state = state.with_player(replace(player, has_met_goal=True))
    haunting = Haunting(seat=player.seat, candidates=pool, drawn_from=guilty)
    state = replace(state, hauntings=(*state.hauntings, haunting))
    names = [state.players[seat].name for seat in pool]
    return Changed(
        state,
        (
            private(state, EventKind.GOAL_MET, (player.seat,)),
            private(state, EventKind.HAUNT_OFFERED, (player.seat,), candidates=list(names)),
        ),
    )


def _haunt(night: NightState, deed: Deed) -> None:
    night.attack(deed.seat, deed.targets[0], Level.UNSTOPPABLE, HAUNTED, is_direct=False, reaches_jail=True)


def _haunt_somebody(night: NightState, seat: int) -> None:
    """A Jester who chose nobody takes one of those who voted guilty, drawn by lot."""
    haunting = _haunting(night.state, seat)
    if haunting is None or any(deed.seat == seat and deed.verb == HAUNT for deed in night.deeds):
        return
    pool = [guilty for guilty in haunting.drawn_from if night.state.players[guilty].alive]
    if pool:
        chosen = night.chance("haunt", seat).choice(pool)
        drawn = Deed(seat=seat, verb=HAUNT, targets=(chosen,))
        night.note("drawn by lot", seat, now=drawn)
        night.deeds.append(drawn)


ROLE = Role(
    name="Jester",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_EVIL,
    card="You want the Town to lynch you. In the night after, you kill one of those who did not vote you innocent, and "
    "nothing can stop it.",
    goal="Get yourself lynched. You win even though you are dead, whoever else wins.",
    group=None,
    investigator_group=6,
    investigator_place=3,
    attack=Level.UNSTOPPABLE,
    is_detection_immune=True,
    is_convertible=True,
    causes=(HAUNTED,),
    abilities=(
        NightAbility(
            verb=HAUNT,
            tactic=tactics.anybody,
            help="kill that player, who did not vote you innocent",
            step=Step.PREPARE,
            effect=_haunt,
            aims=_candidates,
            is_visit=False,
            is_offered=lambda state, player: not player.alive,
        ),
    ),
    when_lynched=_earn_haunting,
    by_night=_haunt_somebody,
)
