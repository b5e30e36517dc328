"""Lookout: sees who comes to one house (rules, section 7.7)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player


def _houses(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living)


def _watch(night: NightState, deed: Deed) -> None:
    house = night.house(deed)
    seen = [night.looks_like(visitor) for visitor in night.visitors(house) if visitor != deed.seat]
    # The Jailor is where the prisoner is, without a visit that anybody else could meet.
    if house == night.state.prisoner and night.state.keeper is not None:
        seen.append(night.state.keeper)
    names = sorted({night.name_of(visitor) for visitor in seen})
    night.chance("watch", deed.seat).shuffle(names)
    night.find(deed.seat, deed.targets[0], f"visited by {' and '.join(names) or 'nobody'}")


ROLE = Role(
    name="Lookout",
    short_names=("LO",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card="Each night watch one house, your own if you like, and learn who visited it.",
    goal=GOAL,
    group="town",
    investigator_group=7,
    investigator_place=1,
    worth=3.0,
    is_informed=True,
    is_raisable=True,
    abilities=(
        NightAbility(
            verb="watch",
            tactic=tactics.protect,
            help="learn who visits that player tonight",
            step=Step.INVESTIGATE,
            effect=_watch,
            aims=_houses,
            reaches_jail=True,
            # A Lookout sees who arrives where he looks, not who set out for it.
            is_moved=False,
        ),
    ),
)
