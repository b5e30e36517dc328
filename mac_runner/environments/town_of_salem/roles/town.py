"""Town Killing, Protective and Support (rules, sections 6, 7.1 to 7.4, 7.9 to 7.11, and 10)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import (
    A_VAMPIRE,
    FAILED,
    NOT_A_VAMPIRE,
    TARGET_JAILED,
    EventKind,
    Notice,
    Says,
    private,
    public,
)
from mac_runner.environments.town_of_salem.model.role import (
    TOWN_GOAL,
    Alignment,
    Changed,
    DayAbility,
    Guard,
    Level,
    NightAbility,
    NightState,
    Note,
    Protection,
    Role,
    Step,
    converted,
    everybody,
    others,
    strike,
)
from mac_runner.environments.town_of_salem.model.state import (
    DeathCause,
    Faction,
    GameState,
    NightAction,
    Options,
    Player,
    Seance,
)
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES

_town = partial(Role, faction=Faction.TOWN, goal=TOWN_GOAL, group="town")
_killing = partial(_town, alignment=Alignment.TOWN_KILLING)
_protective = partial(_town, alignment=Alignment.TOWN_PROTECTIVE)
_support = partial(_town, alignment=Alignment.TOWN_SUPPORT)

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
        night.put(night.player(action.seat).with_uses(EXECUTE, 0))
        night.notify(action.seat, EXECUTIONS_LOST, target=night.name_of(prisoner))


JAILOR = _killing(
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


VETERAN = _killing(
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
        night.put(night.player(seat).with_uses(SHOOT, 0))
        night.mark_for_good(seat, GUILTY)
        night.notify(seat, KILLED_ONE_OF_THE_TOWN, target=night.name_of(victim))


def _regret(night: NightState, seat: int) -> None:
    if GUILTY in night.player(seat).marks and seat in night.living:
        night.attack(seat, seat, level=Level.UNSTOPPABLE, cause=GUILT, is_direct=False, reaches_jail=True)


VIGILANTE = _killing(
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


VAMPIRE_HUNTER = _killing(
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


VEST_ABILITY = NightAbility(
    verb="vest",
    tactic="vest",
    help="put on a vest: a basic defence for tonight",
    step=Step.PROTECT,
    effect=lambda night, action: night.defend(action.seat, Level.BASIC),
)


# The Bodyguard dies for another and takes the killer along (rules, section 7.4 and section 6, step 9).
STRUCK = DeathCause("bodyguard", "killed by a Bodyguard")
FALLEN = DeathCause("guarding", "killed while guarding somebody")


def _step_before(night: NightState, action: NightAction, house: int) -> None:
    night.protect(house, Protection(action.seat, "guarded", guard=Guard(falls_by=FALLEN, strikes_by=STRUCK)))


def _put_on(night: NightState, action: NightAction) -> None:
    """A Bodyguard who was moved guards the player who is in his place."""
    house = night.place(action.seat)
    if house == action.seat:
        night.defend(action.seat, Level.BASIC)
    else:
        _step_before(night, action, house)


BODYGUARD = _protective(
    name="Bodyguard",
    short_names=("BG",),
    card="Each night guard one player: anyone who attacks them in person meets you instead, and you strike back with a "
    "powerful attack. You will probably die doing so. Once in the game you may wear a vest instead, and survive basic "
    "attacks that night.",
    investigator_group=11,
    investigator_place=1,
    attack=Level.POWERFUL,
    causes=(STRUCK, FALLEN),
    abilities=(
        NightAbility(
            verb="guard",
            tactic="protect",
            protects=True,
            account="I stood guard over {target}",
            help="step between that player and whoever attacks them tonight",
            step=Step.PROTECT,
            effect=lambda night, action: _step_before(night, action, night.house(action)),
            aims=others,
            # The one vest is the Bodyguard's own to put on.
            is_forced_on_self=False,
        ),
        replace(VEST_ABILITY, uses=1, effect=_put_on),
    ),
)


# The Doctor gives one player a powerful defence for the night (rules, section 7.4 and section 6, step 10).
SELF_HEALS = "self-heal"

PATIENT_ATTACKED = Notice(
    name="patient_attacked",
    words="Your patient {target} was attacked.",
    befalls="their patient was attacked",
    says=Says.ATTACKED,
    is_finding=True,
)


def _heal(night: NightState, action: NightAction) -> None:
    if action.targets == (action.seat,):
        night.mark_for_good(action.seat, SELF_HEALS)
    house = night.house(action)
    if night.role_of(house).is_revealed(night.player(house)):
        night.notify(action.seat, FAILED, target=night.name_of(action.targets[0]))
        return
    night.protect(house, Protection(action.seat, "healed", Level.POWERFUL, PATIENT_ATTACKED))


DOCTOR = _protective(
    name="Doctor",
    is_key=True,
    short_names=("doc",),
    card="Each night heal one player: they survive basic and powerful attacks that night. You learn whether your "
    "patient was attacked. You may heal yourself once in the game.",
    investigator_group=9,
    investigator_place=1,
    abilities=(
        NightAbility(
            verb="heal",
            tactic="protect",
            protects=True,
            account="I watched over {target}",
            help="protect that player from attacks tonight (yourself once in the game)",
            step=Step.PROTECT,
            effect=_heal,
            aims=lambda state, player: (others if SELF_HEALS in player.marks else everybody)(state, player),
            # The one self-heal is the Doctor's own to give away.
            is_forced_on_self=False,
        ),
    ),
)


# The Escort keeps one player from acting (rules, section 7.3 and section 6, step 5).
BLOCK_ABILITY = NightAbility(
    verb="block",
    tactic="block",
    account="I kept {target} company",
    help="keep that player from acting tonight",
    step=Step.BLOCK,
    effect=lambda night, action: night.block(action.seat, night.house(action)),
    aims=others,
)

ESCORT = _support(
    name="Escort",
    card="Each night block one player: what they chose to do that night does not happen. You cannot be blocked.",
    investigator_group=8,
    investigator_place=1,
    is_block_immune=True,
    yields_to=lambda player, other: other.faction is Faction.MAFIA,
    abilities=(BLOCK_ABILITY,),
)


# The Mayor, once revealed, has a vote that weighs three (rules, section 7.9).
REVEAL = "reveal"
WEIGHT = 3


def _is_revealed(player: Player) -> bool:
    return player.uses[REVEAL] == 0


def _reveal(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    return Changed(state, (public(state, EventKind.REVEALED, player=player.name, role=MAYOR.name),))


MAYOR = _support(
    name="Mayor",
    is_key=True,
    is_risky_claim=True,
    card=f"Once in the game you may reveal yourself by day; from then on your vote and your ballot count {WEIGHT} "
    "times. After that you cannot whisper or be whispered to, and a Doctor cannot heal you.",
    investigator_group=10,
    investigator_place=3,
    worth=5.0,
    is_unique=True,
    votes=lambda player: WEIGHT if _is_revealed(player) else 1,
    is_revealed=_is_revealed,
    abilities=(
        DayAbility(
            verb=REVEAL,
            help=f"show everyone that you are the Mayor; from then on your vote counts {WEIGHT} times",
            effect=_reveal,
            tactic="reveal",
            uses=1,
        ),
    ),
)


# The Medium speaks with the dead, in a channel of `rules.calendar`, and once, when dead, with one of the living
# (rules, section 7.10).
def _seance(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    (target,) = targets
    state = replace(state, seance=Seance(medium=player.seat, target=target))
    return Changed(state, (private(state, EventKind.SEANCE_CHOSEN, (player.seat,), target=state.players[target].name),))


MEDIUM = _support(
    name="Medium",
    card="Each night you talk with the dead, who know you only as `Medium`. Once dead, you may choose one living "
    "player, once in the game, and talk with them in the coming night.",
    investigator_group=2,
    investigator_place=1,
    worth=2.0,
    is_informed=True,
    talks_with_dead=True,
    abilities=(
        DayAbility(
            verb="seance",
            help="talk with that living player in the coming night, once in the game",
            effect=_seance,
            tactic="seance",
            aims=others,
            is_offered=lambda state, player: not player.alive and state.seance is None,
            uses=1,
        ),
    ),
)


# The Retributionist has the dead of the Town act once more, or brings one back (rules, section 7.11).
RAISED = "raised"


def _ability_of(state: GameState, corpse: Player) -> NightAbility | None:
    """The ability with one target that a corpse can still use for another, if a use is left."""
    role = ROLES[corpse.role]
    is_known = corpse.shown_role == corpse.role
    if not is_known or not role.is_raisable or RAISED in corpse.marks:
        return None
    usable = (one for one in role.night_abilities.values() if one.visits_one and one.is_ready(state, corpse))
    return next(usable, None)


def _corpses(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead who were shown as a role that can be raised. Only trying shows whether they can act."""
    return tuple(
        other.seat
        for other in state.players
        if other.shown_role is not None and ROLES[other.shown_role].is_raisable and RAISED not in other.marks
    )


def _raise(night: NightState, action: NightAction) -> None:
    corpse, target = action.targets
    ability = _ability_of(night.state, night.player(corpse))
    night.mark_for_good(corpse, RAISED)
    if ability is None:
        night.notify(action.seat, FAILED, target=night.name_of(corpse))
        return
    night.listen(action.seat, corpse)
    raised = NightAction(seat=corpse, verb=ability.verb, targets=(target,))
    night.notes.append(Note("raised", (corpse,), by=action.seat, now=raised))
    night.actions.append(raised)


def _fallen(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead shown as of the Town, without those whose unique role is held again."""
    held = {other.role for other in state.living if ROLES[other.role].is_unique}
    return tuple(
        other.seat
        for other in state.players
        if (role := other.shown_role) is not None and role not in held and ROLES[role].faction is Faction.TOWN
    )


def _revive(night: NightState, action: NightAction) -> None:
    (seat,) = action.targets
    corpse = night.player(seat)
    if seat not in _fallen(night.state, night.player(action.seat)) or corpse.shown_role != corpse.role:
        night.notify(action.seat, FAILED, target=night.name_of(seat))
        return
    night.fulfilled.add(action.seat)
    # A death of guilt has paid for it.
    night.put(replace(corpse, death=None, marks=corpse.marks - {GUILTY}))
    night.events.append(public(night.state, EventKind.REVIVED, player=night.name_of(seat)))


def _retribution(roles: Collection[Role], options: Options) -> str:
    if options.retri == "revive":
        return (
            "Once in the game you may bring back to life a dead member of the Town whose role was shown. You cannot be "
            "blocked or controlled."
        )
    return (
        "Each night choose a dead member of the Town, whose role was shown, to use their ability once more on a living "
        "player. You learn what they find. Each of the dead can do so once, but a Jailor, Mayor, Medium, Veteran, "
        "Transporter or Retributionist cannot. You cannot be blocked or controlled."
    )


RETRIBUTIONIST = _support(
    name="Retributionist",
    short_names=("retri",),
    card=_retribution,
    investigator_group=2,
    investigator_place=3,
    worth=3.0,
    is_unique=True,
    is_block_immune=True,
    is_control_immune=True,
    abilities=(
        NightAbility(
            verb="raise",
            tactic="raise_dead",
            help="have the first player, who is dead, use their ability on the second one",
            step=Step.PREPARE,
            effect=_raise,
            aims=_corpses,
            second_aims=others,
            is_visit=False,
            is_offered=lambda state, player: player.alive and state.options.retri == "raise",
        ),
        NightAbility(
            verb="revive",
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


# The Transporter swaps two players for a night (rules, section 6, step 1).
TRANSPORTED = Notice(
    name="transported",
    words="You were moved to another house tonight.",
    befalls="they were moved to another house",
    says=Says.TRANSPORTED,
)


def _swap(night: NightState, action: NightAction) -> None:
    for target in dict.fromkeys(action.targets):
        night.visit(action.seat, target)
    one, other = action.targets
    if night.state.prisoner in action.targets:
        night.notes.append(Note("target in jail", (action.seat,), was=action))
        night.notify(action.seat, TARGET_JAILED, target=night.name_of(night.state.prisoner))
    elif one != other:
        night.notes.append(Note("moved", (one, other), by=action.seat))
        night.swap(one, other)
        for moved in action.targets:
            night.notify(moved, TRANSPORTED)


TRANSPORTER = _support(
    name="Transporter",
    short_names=("TP",),
    card="Each night swap two players, yourself included if you like: whoever aims at one reaches the other. Both "
    "learn that they were moved. You cannot be blocked or controlled.",
    investigator_group=8,
    investigator_place=2,
    is_block_immune=True,
    is_control_immune=True,
    outlasts=lambda other: other.id == "mafioso",
    abilities=(
        NightAbility(
            verb="swap",
            tactic="swap",
            help="swap two players tonight: whoever aims at one reaches the other",
            step=Step.TRANSPORT,
            effect=_swap,
            aims=everybody,
            second_aims=everybody,
            is_visit=False,
        ),
    ),
)
