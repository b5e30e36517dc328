"""Witch: makes others act as she likes (rules, section 6 step 3 and section 11)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.roles import tactics
from mac_runner.environments.town_of_salem.roles.base import (
    Alignment,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    others,
    with_article,
)
from mac_runner.environments.town_of_salem.state import Deed, Faction, GameState, Player

SHIELD_SPENT = "shield spent"


def _anybody(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living)


def _control(night: NightState, deed: Deed) -> None:
    puppet, victim = night.house(deed), deed.targets[1]
    name = night.name_of(deed.targets[0])
    if night.role_of(puppet).is_control_immune:
        night.note("control resisted", puppet, by=deed.seat)
        night.tell(deed.seat, EventKind.CONTROL_FAILED, target=name)
        night.tell(puppet, EventKind.CONTROL_RESISTED)
        return
    night.tell(deed.seat, EventKind.RESULT, about=name, finding=with_article(night.role_of(puppet).name))
    night.tell(puppet, EventKind.CONTROLLED)
    night.listen(deed.seat, puppet)
    controlled = _deed_of(night, puppet, victim)
    night.note("controlled", puppet, by=deed.seat, was=night.deed_of(puppet), now=controlled)
    night.controlled.add(puppet)
    night.deeds = [other for other in night.deeds if other.seat != puppet]
    if controlled is not None:
        night.deeds.append(controlled)


def _deed_of(night: NightState, puppet: int, victim: int) -> Deed | None:
    player = night.player(puppet)
    for ability in night.role_of(puppet).abilities:
        if isinstance(ability, NightAbility):
            deed = ability.controlled(night.state, player, victim)
            if deed is not None:
                return deed
    return None


def _has_outlived_the_town(state: GameState, player: Player) -> bool:
    """Alive at the end, and the Town has not won; where nobody has, none of the Town may be left."""
    result = state.result
    if not player.alive or result is None or result.ending == "capped" or "town" in result.winners:
        return False
    return bool(result.winners) or not any(other.faction is Faction.TOWN for other in state.living)


ROLE = Role(
    name="Witch",
    faction=Faction.NEUTRAL,
    alignment=Alignment.NEUTRAL_EVIL,
    card="Each night choose a player and somebody for them to act upon: they use their ability as you like. You learn "
    "their role and what they find. Until you are first attacked, basic attacks do not kill you. You cannot be blocked "
    "or controlled.",
    goal="Be alive when the game ends, and see the Town lose it.",
    group=None,
    investigator_group=7,
    investigator_place=3,
    defence=Level.BASIC,
    is_block_immune=True,
    is_control_immune=True,
    is_detection_immune=True,
    is_defence_secret=True,
    is_hostile_to_town=True,
    defence_now=lambda player: Level.NONE if SHIELD_SPENT in player.marks else Level.BASIC,
    when_attacked=lambda night, seat: night.mark_for_good(seat, SHIELD_SPENT),
    has_won=_has_outlived_the_town,
    abilities=(
        NightAbility(
            verb="control",
            tactic=tactics.control,
            help="make the first player use their ability on the second one",
            step=Step.CONTROL,
            effect=_control,
            aims=others,
            second_aims=_anybody,
        ),
    ),
)
