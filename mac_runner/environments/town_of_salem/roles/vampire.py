"""Neutral Chaos: the Vampire, who turns others into Vampires (rules, section 10)."""

from __future__ import annotations

from collections import Counter

from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.environments.town_of_salem.model.night import Level, Step
from mac_runner.environments.town_of_salem.model.role import (
    Alignment,
    NightAbility,
    NightState,
    Role,
    become,
    join_team,
)
from mac_runner.environments.town_of_salem.model.state import DeathCause, Faction, GameState, NightAction, Player

BITTEN_TO_DEATH = DeathCause("vampire", "bitten by a Vampire", guard_order=4, is_visible=True)

BITE = "bite"
BITTEN = "bitten"
# From so many Vampires on they kill instead of turning.
VAMPIRES_MAX = 4


def _clan(state: GameState) -> list[Player]:
    return [player for player in state.living if player.faction is Faction.VAMPIRE]


def _mortals(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living if other.faction is not Faction.VAMPIRE)


def _is_hungry(state: GameState, player: Player) -> bool:
    """Vampires do not bite in the night after one was turned."""
    is_resting = any(other.became_on == state.day - 1 and other.became_on > 0 for other in _clan(state))
    return player.alive and not is_resting


def _settle_who_bites(night: NightState) -> None:
    """One bite a night: the victim that most Vampires want, by the Vampire who was turned last."""
    wishes = [action for action in night.actions if action.verb == BITE]
    counted = Counter(action.targets for action in wishes)
    most = max(counted.values())
    wanted = sorted(targets for targets, count in counted.items() if count == most)
    targets = night.chance(BITE).choice(wanted)
    able = [player for player in _clan(night.state) if night.is_able(player.seat)]
    biter = max(able, key=lambda player: (player.became_on, player.seat))
    night.actions = [action for action in night.actions if action.verb != BITE]
    night.actions.append(NightAction(seat=biter.seat, verb=BITE, targets=targets))


def _bite(night: NightState, action: NightAction) -> None:
    victim = night.house(action)
    role = night.role_of(victim)
    if role.hunts_vampires:
        night.attack(victim, action.seat, Level.BASIC, role.causes[0], is_direct=False)
        return
    is_mortal = role.faction is Faction.TOWN or role.is_convertible
    turns = is_mortal and role.defence is Level.NONE and len(_clan(night.state)) < VAMPIRES_MAX
    instead = (lambda: _infect(night, victim)) if turns else None
    night.attack(action.seat, victim, Level.BASIC, BITTEN_TO_DEATH, instead=instead)


def _infect(night: NightState, seat: int) -> None:
    """Make the bitten a Vampire at the end of the night; nothing else can change their role in it."""
    night.tonight[seat].add(BITTEN)
    night.later(Step.REPORT, lambda: _turn(night, seat))


def _turn(night: NightState, seat: int) -> None:
    player = night.player(seat)
    if player.alive and player.faction is not Faction.VAMPIRE:
        night.put(become(night.state, player, VAMPIRE))
        night.notify(seat, EventKind.CONVERTED, role=VAMPIRE.name)
        join_team(night, night.player(seat))


VAMPIRE = Role(
    name="Vampire",
    turns_others="bitten by a Vampire",
    faction=Faction.VAMPIRE,
    alignment=Alignment.NEUTRAL_CHAOS,
    card="Each night the Vampires bite one player, the one whom most of them name. Vampires know each other and "
    "talk at night. The Vampire who was turned last goes. A member of the Town or a harmless neutral who has no "
    "defence becomes a Vampire at dawn, and in the next night no one bites. Anyone else is attacked, and everyone "
    f"is once there are {VAMPIRES_MAX} Vampires. A Vampire who bites a Vampire Hunter dies.",
    goal="You win with the Vampires when everyone who could stop you is dead or a Vampire.",
    group="vampire",
    investigator_group=6,
    investigator_place=2,
    attack=Level.BASIC,
    is_detection_immune=True,
    causes=(BITTEN_TO_DEATH,),
    abilities=(
        NightAbility(
            verb=BITE,
            tactic="kill",
            is_kill=True,
            help="name the player to bite; there is one bite a night, on the player whom most Vampires name",
            step=Step.ATTACK,
            effect=_bite,
            aims=_mortals,
            is_offered=_is_hungry,
            orders=_settle_who_bites,
        ),
    ),
)
