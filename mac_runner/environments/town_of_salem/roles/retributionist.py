"""Retributionist: has the dead of the Town act once more, or brings one back (rules, section 7.11)."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.events import EventKind, public
from mac_runner.environments.town_of_salem.roles import catalogue, tactics
from mac_runner.environments.town_of_salem.roles.base import Alignment, NightAbility, NightState, Role, Step, others
from mac_runner.environments.town_of_salem.roles.town import GOAL
from mac_runner.environments.town_of_salem.roles.vigilante import GUILTY
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player

RAISED = "raised"
REVIVE = "revive"


def _ability_of(state: GameState, corpse: Player) -> NightAbility | None:
    """What a corpse can still do for somebody: its role's ability with one target, if there is a use left."""
    role = catalogue.role(corpse.role)
    is_known = corpse.shown_role == corpse.role
    if not is_known or not role.is_raisable or RAISED in corpse.marks:
        return None
    for ability in role.abilities:
        if isinstance(ability, NightAbility) and ability.aims is not None and ability.is_ready(state, corpse):
            return ability
    return None


def _corpses(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead who were shown as what can be raised; trying shows whether they were that and had a use left."""
    return tuple(
        other.seat
        for other in state.players
        if other.shown_role is not None and catalogue.role(other.shown_role).is_raisable and RAISED not in other.marks
    )


def _raise(night: NightState, deed: Deed) -> None:
    corpse, target = deed.targets
    ability = _ability_of(night.state, night.player(corpse))
    night.mark_for_good(corpse, RAISED)
    if ability is None:
        night.tell(deed.seat, EventKind.FAILED, target=night.name_of(corpse))
        return
    night.listen(deed.seat, corpse)
    raised = Deed(seat=corpse, verb=ability.verb, targets=(target,))
    night.note("raised", corpse, by=deed.seat, now=raised)
    night.deeds.append(raised)


def _fallen(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead who were shown to be of the Town and may come back: not in the way of a unique role."""
    held = {other.role for other in state.living}
    shown = {other.seat: catalogue.role(other.shown_role) for other in state.players if other.shown_role is not None}
    return tuple(
        seat
        for seat, role in shown.items()
        if role.faction is Faction.TOWN and not (role.is_unique and role.id in held)
    )


def _revive(night: NightState, deed: Deed) -> None:
    (seat,) = deed.targets
    corpse = night.player(seat)
    if seat not in _fallen(night.state, night.player(deed.seat)) or corpse.shown_role != corpse.role:
        night.tell(deed.seat, EventKind.FAILED, target=night.name_of(seat))
        return
    # Who died of guilt has paid for it.
    revived = night.player(seat)
    night.put(replace(revived, death=None, marks=revived.marks - {GUILTY}))
    night.announce(public(night.state, EventKind.REVIVED, player=night.name_of(seat)))


ROLE = Role(
    name="Retributionist",
    short_names=("retri",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night have one dead member of the Town, whose role was shown, use their ability once more on a living "
    "player; you learn what they find. Each of the dead can do so once, and not all can: a Jailor, Mayor, Medium, "
    "Veteran, Transporter or Retributionist cannot. In a game with retribution of the old kind you bring back one dead "
    "member of the Town for good instead, once. You cannot be blocked or controlled.",
    goal=GOAL,
    group="town",
    investigator_group=2,
    investigator_place=3,
    worth=3.0,
    is_unique=True,
    is_block_immune=True,
    is_control_immune=True,
    abilities=(
        NightAbility(
            verb="raise",
            tactic=tactics.raise_dead,
            help="have the first player, who is dead, use their ability on the second one",
            step=Step.PREPARE,
            effect=_raise,
            aims=_corpses,
            second_aims=others,
            is_visit=False,
            is_offered=lambda state, player: player.alive and state.options.retri == "raise",
        ),
        NightAbility(
            verb=REVIVE,
            tactic=tactics.anybody,
            help="bring that dead player back to life",
            step=Step.REPORT,
            effect=_revive,
            aims=_fallen,
            uses=1,
            is_visit=False,
            is_offered=lambda state, player: player.alive and state.options.retri == "revive",
        ),
    ),
)
