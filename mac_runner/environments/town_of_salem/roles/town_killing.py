"""Town Killing: Jailor, Veteran, Vigilante and Vampire Hunter (rules, sections 7.1, 7.2 and 10)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import (
    A_VAMPIRE,
    NOT_A_VAMPIRE,
    EventKind,
    Notice,
    Says,
    private,
)
from mac_runner.environments.town_of_salem.model.role import (
    TOWN_GOAL,
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    converted,
    others,
    strike,
)
from mac_runner.environments.town_of_salem.model.state import DeathCause, Faction, GameState, NightAction, Player

_role = partial(Role, faction=Faction.TOWN, alignment=Alignment.TOWN_KILLING, goal=TOWN_GOAL, group="town")

# The Jailor holds one player for the night, talks with them unseen, and may execute them (rules, section 7.1).
JAILED = Notice(
    name="jailed",
    words="You are in jail. You cannot act tonight, but you can talk with the Jailor.",
    says=Says.JAILED,
    hinders=True,
)
JAILING = Notice(name="jailing", words="You have {prisoner} in jail.", is_finding=True)
EXECUTIONS_LOST = Notice(
    name="executions_lost", words="{target} was a member of the Town: you may execute no one else."
)

EXECUTIONS = 3
EXECUTE = "execute"


def _jail(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    (target,) = targets
    chosen = private(state, EventKind.JAIL_CHOSEN, (player.seat,), target=state.players[target].name)
    return Changed(replace(state, jail_choice=target, keeper=player.seat), (chosen,))


def _execute(night: NightState, action: NightAction) -> None:
    prisoner = night.state.prisoner
    if prisoner is None:
        return
    night.attack(action.seat, prisoner, is_direct=False, reaches_jail=True)
    if night.role_of(prisoner).faction is Faction.TOWN:
        night.set_uses(action.seat, action.verb, 0)
        night.notify(action.seat, EXECUTIONS_LOST, target=night.name_of(prisoner))


JAILOR = _role(
    name="Jailor",
    is_key=True,
    is_risky_claim=True,
    hides=True,
    card="Each day you may choose one player to jail for the coming night, and from night 2 on you may execute your "
    f"prisoner. You have {EXECUTIONS} executions, and nothing can stop one. The prisoner cannot act or be reached by "
    "others. You two can talk, and they do not learn who you are. After you execute a member of the Town, you may "
    "execute no one else.",
    investigator_group=4,
    investigator_place=3,
    worth=5.0,
    is_informed=True,
    attack=Level.UNSTOPPABLE,
    is_unique=True,
    leaves_notes=True,
    yields_to=lambda player, other: player.uses[EXECUTE] == 0 and other.id in ("arsonist", "serial killer"),
    causes=(DeathCause("jailor", "executed by the Jailor"),),
    abilities=(
        DayAbility(
            verb="jail",
            help="choose that player as your prisoner for the coming night (a later choice replaces it)",
            effect=_jail,
            aims=others,
            tactic="jail",
        ),
        NightAbility(
            verb=EXECUTE,
            tactic="execute",
            help="kill your prisoner",
            step=Step.ATTACK,
            effect=_execute,
            uses=EXECUTIONS,
            first_night=2,
            is_visit=False,
            reaches_jail=True,
            is_offered=lambda state, player: player.alive and state.keeper == player.seat,
        ),
    ),
)


# The Veteran on alert shoots all visitors (rules, section 7.2).
ALERTS = 3


def _go_on_alert(night: NightState, action: NightAction) -> None:
    night.defend(action.seat, Level.BASIC)
    night.later(Step.ATTACK, lambda: _shoot_visitors(night, action.seat))


def _shoot_visitors(night: NightState, seat: int) -> None:
    for visitor in night.visitors(seat):
        night.attack(seat, visitor, is_direct=False)


VETERAN = _role(
    name="Veteran",
    card=f"On up to {ALERTS} nights you may go on alert and shoot everyone who visits you, friend or foe. On alert you "
    "survive basic attacks. You cannot be blocked or controlled.",
    investigator_group=1,
    investigator_place=2,
    worth=0.2,
    attack=Level.POWERFUL,
    is_unique=True,
    is_block_immune=True,
    is_control_immune=True,
    leaves_notes=True,
    shoots_visitors=True,
    causes=(DeathCause("veteran", "shot by a Veteran on alert"),),
    abilities=(
        NightAbility(
            verb="alert",
            tactic="alert",
            help="shoot everyone who visits you tonight",
            step=Step.PREPARE,
            effect=_go_on_alert,
            uses=ALERTS,
            is_visit=False,
        ),
    ),
)


# The Vigilante shoots, and dies of having shot one of the Town (rules, section 7.2).
GUILT = DeathCause("guilt", "overcome by guilt")
KILLED_ONE_OF_THE_TOWN = Notice(
    name="guilt", words="You killed {target}, a member of the Town. You will die of guilt next night."
)

SHOOT = "shoot"
BULLETS = 3
GUILTY = "guilty"


def _shoot(night: NightState, action: NightAction) -> None:
    victim = night.house(action)
    night.attack(action.seat, victim)
    night.later(Step.BURY, lambda: _look_at(night, action.seat, victim))


def _look_at(night: NightState, seat: int, victim: int) -> None:
    """Whether the victim was of the Town: then the gun is gone, and the next night the last."""
    is_his = any(attack.attacker == seat for attack in night.fatal.get(victim, ()))
    if is_his and victim != seat and night.role_of(victim).faction is Faction.TOWN:
        night.set_uses(seat, SHOOT, 0)
        night.mark_for_good(seat, GUILTY)
        night.notify(seat, KILLED_ONE_OF_THE_TOWN, target=night.name_of(victim))


def _regret(night: NightState, seat: int) -> None:
    if GUILTY in night.player(seat).marks and seat in night.living:
        night.attack(seat, seat, level=Level.UNSTOPPABLE, cause=GUILT, is_direct=False, reaches_jail=True)


VIGILANTE = _role(
    name="Vigilante",
    short_names=("vig", "vigi"),
    card=f"From night 2 on you may shoot one player a night; you have {BULLETS} bullets. If you kill a member of the "
    "Town, you lose your gun and die of guilt the next night, and nothing can prevent it.",
    investigator_group=1,
    investigator_place=1,
    attack=Level.BASIC,
    leaves_notes=True,
    holds_out=lambda player: player.uses[SHOOT] > 0,
    by_night={Step.DUSK: _regret},
    causes=(DeathCause("vigilante", "shot by a Vigilante", guard_order=2), GUILT),
    abilities=(
        NightAbility(
            verb=SHOOT,
            tactic="shoot",
            help="shoot that player",
            step=Step.ATTACK,
            effect=_shoot,
            aims=others,
            uses=BULLETS,
            first_night=2,
        ),
    ),
)


# The Vampire Hunter looks for Vampires and stakes them (rules, section 10).
def _check(night: NightState, action: NightAction) -> None:
    is_vampire = night.role_of(night.house(action)).faction is Faction.VAMPIRE
    if is_vampire:
        strike(night, action)
    night.find(action, A_VAMPIRE if is_vampire else NOT_A_VAMPIRE)


def _look_for_work(state: GameState, player: Player) -> Changed:
    """With no Vampire left to hunt, become a Vigilante with one bullet."""
    if not player.alive or any(other.faction is Faction.VAMPIRE for other in state.living):
        return Changed(state)
    state, events = converted(state, player, VIGILANTE)
    return Changed(state.with_player(replace(state.players[player.seat], uses={SHOOT: 1})), events)


VAMPIRE_HUNTER = _role(
    name="Vampire Hunter",
    short_names=("VH",),
    card="Each night check one player, and stake them if they are a Vampire. A Vampire who bites you is staked too. "
    "You hear what the Vampires say at night, but not who says it. When no Vampire is alive, you become a Vigilante "
    "with one bullet.",
    investigator_group=3,
    investigator_place=2,
    attack=Level.BASIC,
    # In the classic list there are no Vampires to hunt.
    is_classic=False,
    hunts_vampires=True,
    overhears=lambda options: Faction.VAMPIRE,
    after_deaths=_look_for_work,
    may_become={"vigilante": "no Vampire was left"},
    causes=(DeathCause("staked", "staked by a Vampire Hunter", guard_order=5),),
    abilities=(
        NightAbility(
            verb="check",
            tactic="ask",
            account="I went to {target} with garlic and a stake",
            help="learn whether that player is a Vampire, and stake them if so",
            step=Step.ATTACK,
            effect=_check,
            aims=others,
        ),
    ),
)
