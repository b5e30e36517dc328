"""Mafia Deception: Disguiser, Forger, Framer and Janitor (rules, section 8.2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import TARGET_JAILED, Notice, Says
from mac_runner.environments.town_of_salem.model.night import Step
from mac_runner.environments.town_of_salem.model.role import Alignment, NightAbility, NightState, Role
from mac_runner.environments.town_of_salem.model.state import Faction, GameState, NightAction, Player
from mac_runner.environments.town_of_salem.roles.mafia_killing import IN_COMMON, MAFIA_GOAL, RANKS, outsiders

_role = partial(
    Role,
    faction=Faction.MAFIA,
    alignment=Alignment.MAFIA_DECEPTION,
    goal=MAFIA_GOAL,
    in_common=IN_COMMON,
    group="mafia",
    may_become=RANKS,
)

# The Disguiser makes one of the Mafia pass for another player.
DISGUISE = "disguise"


def _own(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living if other.faction is Faction.MAFIA)


def _disguise(night: NightState, action: NightAction) -> None:
    member = action.targets[0]
    if member == night.state.prisoner:
        night.notify(action.seat, TARGET_JAILED, target=night.name_of(member))
        return
    night.disguises[member] = night.house(action)


DISGUISER = _role(
    name="Disguiser",
    card="Each night choose a member of the Mafia, yourself if you like, who passes for a second player of your "
    "choice. That night an Investigator gets the second player's list, a Lookout sees the second player's name, and "
    "if the member dies, the second player's role is shown.",
    investigator_group=9,
    investigator_place=2,
    abilities=(
        NightAbility(
            verb=DISGUISE,
            tactic="disguise",
            help="have the first player, a member of the Mafia, pass for the second player tonight",
            step=Step.PROTECT,
            effect=_disguise,
            aims=_own,
            second_aims=outsiders,
            visited=1,
            under_control=lambda seat, victim: NightAction(seat=seat, verb=DISGUISE, targets=(seat, victim)),
        ),
    ),
)


# The Forger leaves another will with the dead.
def _forge(night: NightState, action: NightAction) -> None:
    """Only the dead leave a will; only a forged one costs a use."""
    body = night.player(night.house(action))
    if body.death is None:
        return
    night.spend(action)
    night.put(replace(body, death=replace(body.death, forged_will=action.text)))


FORGER = _role(
    name="Forger",
    card=lambda roles, options: (
        "Each night write a will for one player: if they die that night, it is read out in place of theirs. You can "
        f"forge {options.forger_uses} wills; a night in which the player lives costs nothing."
    ),
    investigator_group=7,
    investigator_place=2,
    abilities=(
        NightAbility(
            verb="forge",
            tactic="forge",
            help="have your words read out as that player's will if they die tonight",
            step=Step.BURY,
            effect=_forge,
            aims=outsiders,
            takes_text=True,
            uses=lambda options: options.forger_uses,
            is_spent_by_use=False,
        ),
    ),
)


# The Framer makes one player look guilty for a night.
FRAMED = "framed"

FRAMER = _role(
    name="Framer",
    card="Each night frame one player: that night they look suspicious to a Sheriff and like a Framer to an "
    "Investigator.",
    investigator_group=6,
    investigator_place=1,
    abilities=(
        NightAbility(
            verb="frame",
            tactic="anybody",
            help="make that player look guilty to investigations tonight",
            step=Step.PROTECT,
            effect=lambda night, action: night.tonight[night.house(action)].add(FRAMED),
            aims=outsiders,
        ),
    ),
)


# The Janitor hides what the dead were.
CLEANED = Notice(
    name="cleaned", words="You cleaned {target}, who was {a_role}. {legacy}", says=Says.ROLES, is_finding=True
)


def _clean(night: NightState, action: NightAction) -> None:
    """Only a body can be cleaned, and only a cleaned one costs a use."""
    body = night.player(night.house(action))
    if body.death is None:
        return
    night.spend(action)
    night.put(replace(body, death=replace(body.death, is_cleaned=True)))
    role = night.role_of(body.seat).name
    night.notify(action.seat, CLEANED, target=body.name, role=role, legacy=body.will)


JANITOR = _role(
    name="Janitor",
    card=lambda roles, options: (
        "Each night choose one player to clean: if they die that night, only you learn their role and their will. You "
        f"can clean {options.janitor_uses} bodies; a night in which the player lives costs nothing."
    ),
    investigator_group=2,
    investigator_place=2,
    abilities=(
        NightAbility(
            verb="clean",
            tactic="kill",
            help="hide that player's role and will if they die tonight",
            step=Step.BURY,
            effect=_clean,
            aims=outsiders,
            uses=lambda options: options.janitor_uses,
            is_spent_by_use=False,
        ),
    ),
)
