"""Spy: knows where the Mafia goes and what befalls one player (rules, section 7.8)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step, others
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.state import Deed, Faction

# What a bug picks up: what befell its wearer, not what they found out.
PICKED_UP = frozenset(
    {
        EventKind.ATTACKED,
        EventKind.BLOCKED,
        EventKind.BLOCK_RESISTED,
        EventKind.CONTROLLED,
        EventKind.CONTROL_RESISTED,
        EventKind.TRANSPORTED,
        EventKind.DOUSED,
        EventKind.BLACKMAILED,
        EventKind.PATIENT_ATTACKED,
    }
)


def _listen_in(night: NightState, deed: Deed) -> None:
    """Report what befell the player the bug sits on; a raised Spy reports too, being dead already."""
    target = night.house(deed)
    if not night.player(deed.seat).alive and deed.seat in night.living:
        return
    heard = [event.kind for event in night.events if event.audience == frozenset({target}) and event.kind in PICKED_UP]
    heard += [kind for seat, kind in night.unnoticed if seat == target]
    for kind in heard:
        night.report(deed.seat, EventKind.BUGGED, target=night.name_of(target), happened=kind.value)


def _follow_the_mafia(night: NightState, seat: int) -> None:
    if night.player(seat).alive:
        night.later(Step.REPORT, lambda: _report_visits(night, seat))


def _report_visits(night: NightState, seat: int) -> None:
    if not night.player(seat).alive or not night.is_able(seat):
        return
    visited = [
        night.name_of(visit.house)
        for visit in night.visits
        if night.state.players[visit.visitor].faction is Faction.MAFIA
    ]
    if visited:
        night.chance("spy", seat).shuffle(visited)
        night.tell(seat, EventKind.MAFIA_VISITS, visited=list(visited))


ROLE = Role(
    name="Spy",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_INVESTIGATIVE,
    card="Each night you learn whom the Mafia visited, not who went. You may put a bug on one player a night and learn "
    "what befell them: attacks, blocks, moves and the like. In a game with spies of the old kind you hear the Mafia's "
    "chat and all whispers instead of using a bug.",
    goal=GOAL,
    group="town",
    investigator_group=4,
    investigator_place=1,
    worth=3.0,
    is_informed=True,
    is_raisable=True,
    reads_whispers=lambda options: options.spy == "ears",
    overhears=lambda options: Faction.MAFIA if options.spy == "ears" else None,
    by_night=_follow_the_mafia,
    abilities=(
        NightAbility(
            verb="bug",
            tactic=tactics.protect,
            help="learn what befalls that player tonight",
            step=Step.REPORT,
            effect=_listen_in,
            aims=others,
            is_moved=False,
            is_offered=lambda state, player: player.alive and state.options.spy == "bug",
        ),
    ),
)
