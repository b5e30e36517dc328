"""The neutral roles: killers, Vampires, and those who win alone (rules, sections 6, 7.3 and 9 to 11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import (
    FAILED,
    RESULT,
    EventKind,
    Notice,
    Says,
    private,
    public,
    with_article,
)
from mac_runner.environments.town_of_salem.model.role import (
    DOUSED,
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    NightState,
    Note,
    Role,
    Step,
    become,
    converted,
    everybody,
    fellows,
    join_team,
    others,
    outsiders,
    strike,
)
from mac_runner.environments.town_of_salem.model.state import (
    LYNCH,
    Ballot,
    DeathCause,
    Faction,
    GameState,
    Haunting,
    NightAction,
    Options,
    Player,
)
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES
from mac_runner.environments.town_of_salem.roles.town import VEST_ABILITY
from mac_runner.types import JsonValue

_neutral = partial(Role, faction=Faction.NEUTRAL)
_killing = partial(
    _neutral,
    alignment=Alignment.NEUTRAL_KILLING,
    goal="You win with your own kind when the Town, the Mafia and all other killers are dead.",
    defence=Level.BASIC,
    leaves_notes=True,
    investigator_place=3,
)

# The Arsonist pours petrol over players, and then sets fire to all of them (rules, section 9.2).
POURED_OVER = Notice(name="doused", words="You were doused.", befalls="they were doused", says=Says.DOUSED)
VISITED = Notice(name="visited", words="You doused the players who visited you: {visitors}.", is_finding=True)

IGNITE = "ignite"
DOUSE = "douse"


def _pour_over(night: NightState, seat: int) -> None:
    night.mark_for_good(seat, DOUSED)
    if night.role_of(seat) is ARSONIST:
        night.notify(seat, POURED_OVER)
    else:
        night.unnoticed.append((seat, POURED_OVER))


def _pour_over_visitors(night: NightState, seat: int) -> None:
    visitors = night.visitors(seat) if night.player(seat).alive else ()
    for visitor in visitors:
        _pour_over(night, visitor)
    if visitors:
        names = [night.name_of(night.looks_like(visitor)) for visitor in visitors]
        night.notify(seat, VISITED, visitors=list(names))


def _ignite(night: NightState, action: NightAction) -> None:
    for player in night.state.living:
        if DOUSED in player.marks and player.seat != action.seat:
            night.attack(action.seat, player.seat, is_direct=False, reaches_jail=True)


def _wash(night: NightState, action: NightAction) -> None:
    player = night.player(action.seat)
    night.put(replace(player, marks=player.marks - {DOUSED}))


ARSONIST = _killing(
    name="Arsonist",
    short_names=("arso",),
    card="Each night douse one player, who does not notice, or set fire to everyone who is doused, which nothing "
    "can stop. You may instead wash off what another Arsonist poured over you. Everyone who visits you is doused "
    "too, and you learn who came. You survive basic attacks at night.",
    group="arsonist",
    investigator_group=11,
    attack=Level.UNSTOPPABLE,
    is_detection_immune=True,
    by_night={Step.PROTECT: _pour_over_visitors},
    outlasts=lambda other: (
        other.faction is Faction.MAFIA or other.id in ("serial killer", "vampire", "escort", "transporter")
    ),
    causes=(DeathCause("arsonist", "burnt by an Arsonist"),),
    abilities=(
        # Scripted players use the first that has something to do.
        NightAbility(
            verb=IGNITE,
            tactic="ignite",
            help="set fire to everyone who is doused",
            step=Step.ATTACK,
            effect=_ignite,
        ),
        NightAbility(
            verb="wash",
            tactic="at_once",
            help="wash off the petrol that another Arsonist poured over you",
            step=Step.PROTECT,
            effect=_wash,
            is_offered=lambda state, player: player.alive and DOUSED in player.marks,
        ),
        NightAbility(
            verb=DOUSE,
            tactic="douse",
            help="pour petrol over that player, who does not notice",
            step=Step.PROTECT,
            effect=lambda night, action: _pour_over(night, night.house(action)),
            aims=others,
            under_control=lambda seat, victim: (
                NightAction(seat=seat, verb=IGNITE)
                if victim == seat
                else NightAction(seat=seat, verb=DOUSE, targets=(victim,))
            ),
        ),
    ),
)


# The Serial Killer kills every night, and all who get in the way (rules, sections 9.1 and 7.3).
CAUTIOUS = "cautious"

CAUTION = Notice(name="caution", words="From now on you spare those who block or jail you.")
NO_CAUTION = Notice(name="caution", words="From now on you kill those who block or jail you.")


def _change_mind(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    marks = player.marks ^ {CAUTIOUS}
    notice = CAUTION if CAUTIOUS in marks else NO_CAUTION
    event = private(state, notice, (player.seat,), is_cautious=CAUTIOUS in marks)
    return Changed(state.with_player(replace(player, marks=marks)), (event,))


def _turn_on(night: NightState, seat: int, victim: int) -> None:
    night.attack(seat, victim, is_bloody=True)


def _meet_blocker(night: NightState, seat: int, blocker: int) -> bool:
    """Without caution, turn on the blocker instead of being kept busy."""
    if CAUTIOUS in night.player(seat).marks:
        return True
    night.later(Step.ATTACK, lambda: _turn_on(night, seat, blocker))
    return night.state.options.sk_blocked != "both"


def _meet_jailor(night: NightState, seat: int) -> None:
    keeper = night.state.keeper
    is_waiting = seat == night.state.prisoner and CAUTIOUS not in night.player(seat).marks
    if keeper is not None and is_waiting and not night.is_executed(seat):
        _turn_on(night, seat, keeper)


SERIAL_KILLER = _killing(
    name="Serial Killer",
    short_names=("SK",),
    card="Each night kill one player. Whoever blocks you is killed too, and so is a Jailor who jails you and does not "
    "execute you; their wills cannot be read. By day you may choose to be cautious and spare them. You survive basic "
    "attacks at night.",
    group="serial killer",
    investigator_group=9,
    kills_jailors=True,
    attack=Level.BASIC,
    suspicious_when=lambda state: True,
    when_blocked=_meet_blocker,
    by_night={Step.ATTACK: _meet_jailor},
    outlasts=lambda other: other.id in ("godfather", "mafioso", "vampire", "transporter"),
    kills_blockers=True,
    causes=(DeathCause("serial killer", "stabbed by a Serial Killer", guard_order=1, is_visible=True),),
    abilities=(
        NightAbility(
            verb="stab",
            is_kill=True,
            tactic="strike",
            help="kill that player",
            step=Step.ATTACK,
            effect=strike,
            aims=others,
        ),
        DayAbility(
            verb="caution",
            help="from now on spare those who block or jail you; choose it again to kill them as before",
            effect=_change_mind,
        ),
    ),
)


# The Werewolf rages through a house on every full moon (rules, section 9.3).
def _rage(night: NightState, seat: int) -> None:
    """Rage at the house chosen, or at home: there after a block too, or with the Jailor when jailed."""
    if not (night.player(seat).alive and night.state.is_full_moon):
        return
    if seat == night.state.prisoner:
        keeper = night.state.keeper
        if keeper is not None and not night.is_executed(seat):
            night.attack(seat, keeper)
        return
    house = next((night.house(action) for action in night.actions if action.seat == seat and action.targets), seat)
    if house != seat:
        night.attack(seat, house)
    for visitor in night.visitors(house):
        if visitor not in (seat, house):
            night.attack(seat, visitor)


WEREWOLF = _killing(
    name="Werewolf",
    short_names=("WW",),
    card="On every full moon, that is every second night, you attack the owner of one house and all its other "
    "visitors. Your attack is powerful. If you choose no house or your own, or are blocked, you stay at home and "
    "attack whoever visits you. In jail you attack the Jailor unless you are executed. A Sheriff finds you "
    "suspicious on a full moon only. You survive basic attacks at night.",
    group="werewolf",
    investigator_group=5,
    kills_jailors=True,
    attack=Level.POWERFUL,
    is_unique=True,
    minds_the_moon=True,
    suspicious_when=lambda state: state.is_full_moon,
    by_night={Step.ATTACK: _rage},
    outlasts=lambda other: other.id in ("godfather", "mafioso", "vampire", "serial killer"),
    causes=(DeathCause("werewolf", "mauled by a Werewolf", guard_order=3, is_visible=True),),
    abilities=(
        NightAbility(
            verb="rampage",
            tactic="strike",
            help="attack the owner of that house and everyone who visits it",
            step=Step.ATTACK,
            # It rages without a choice too (`by_night`); the choice is only where.
            effect=lambda night, action: None,
            aims=lambda state, player: state.living_seats if state.is_full_moon else (),
            reaches_jail=True,
        ),
    ),
)


# The Vampires bite one player a night, who becomes one of them or dies (rules, section 10).
BITE = "bite"
BITTEN = "bitten"
# From so many Vampires on they kill instead of turning.
VAMPIRES_MAX = 4


def _is_hungry(state: GameState, player: Player) -> bool:
    """Vampires do not bite in the night after one was turned."""
    turned = {state.players[seat].became_on for seat in fellows(state, player)} - {0}
    return player.alive and state.day - 1 not in turned


def _settle_who_bites(night: NightState) -> None:
    """One bite a night: the victim that most Vampires want, by the Vampire who was turned last."""
    wishes = [action for action in night.actions if action.verb == BITE]
    counted = Counter(action.targets for action in wishes)
    most = max(counted.values())
    wanted = sorted(targets for targets, count in counted.items() if count == most)
    targets = night.chance(BITE).choice(wanted)
    able = filter(night.is_able, fellows(night.state, night.player(wishes[0].seat)))
    biter = max(able, key=lambda seat: (night.player(seat).became_on, seat))
    night.actions = [action for action in night.actions if action.verb != BITE]
    night.actions.append(NightAction(seat=biter, verb=BITE, targets=targets))


def _bite(night: NightState, action: NightAction) -> None:
    victim = night.house(action)
    role = night.role_of(victim)
    if role.hunts_vampires:
        night.attack(victim, action.seat, is_direct=False)
        return
    clan = fellows(night.state, night.player(action.seat))
    is_mortal = role.faction is Faction.TOWN or role.is_convertible
    turns = is_mortal and role.defence is Level.NONE and len(clan) < VAMPIRES_MAX
    instead = (lambda: _infect(night, victim)) if turns else None
    night.attack(action.seat, victim, instead=instead)


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
    causes=(DeathCause("vampire", "bitten by a Vampire", guard_order=4, is_visible=True),),
    abilities=(
        NightAbility(
            verb=BITE,
            tactic="kill",
            is_kill=True,
            help="name the player to bite; there is one bite a night, on the player whom most Vampires name",
            step=Step.ATTACK,
            effect=_bite,
            aims=outsiders,
            is_offered=_is_hungry,
            orders=_settle_who_bites,
        ),
    ),
)


_alone = partial(_neutral, group=None, is_detection_immune=True)
_benign = partial(_alone, alignment=Alignment.NEUTRAL_BENIGN, investigator_group=3, is_convertible=True)
_evil = partial(_alone, alignment=Alignment.NEUTRAL_EVIL)


# The Amnesiac becomes what one of the dead was.
def _remembered_as(state: GameState, corpse: Player) -> str | None:
    """The role a corpse can be remembered as; None when it is hidden or held."""
    if not _is_shown(state, corpse):
        return None
    role = ROLES[corpse.shown_role or ""]
    if role.id == "godfather" and not any(other.faction is Faction.MAFIA for other in state.living):
        return "mafioso"
    is_held = role.is_unique and any(other.role == role.id for other in state.living)
    return None if is_held else role.id


def _is_shown(state: GameState, corpse: Player) -> bool:
    """Whether a corpse was shown as a role that may be remembered."""
    if corpse.shown_role is None or corpse.shown_role == "amnesiac":
        return False
    role = ROLES[corpse.shown_role]
    is_barred = state.options.amnesiac == "no_unique_town" and role.is_unique and role.faction is Faction.TOWN
    return not is_barred


def _dead(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead to choose from. Only trying shows whether a unique role is free: it is secret that one is held."""
    return tuple(other.seat for other in state.players if _is_shown(state, other))


def _remember(night: NightState, action: NightAction) -> None:
    player = night.player(action.seat)
    role_id = _remembered_as(night.state, night.player(action.targets[0]))
    if not player.alive or BITTEN in night.tonight[action.seat]:
        return
    if role_id is None:
        night.notify(action.seat, FAILED, target=night.name_of(action.targets[0]))
        return
    night.fulfilled.add(action.seat)
    role = ROLES[role_id]
    night.put(role.deal(night.state, become(night.state, player, role)))
    player = night.player(action.seat)
    name = ROLES[player.role].name
    night.events.append(public(night.state, EventKind.REMEMBERED, role=role.name))
    night.notify(action.seat, EventKind.CONVERTED, role=name)
    if player.quarry is not None:
        night.notify(action.seat, EventKind.QUARRY, target=night.name_of(player.quarry))
    join_team(night, player)


AMNESIAC = _benign(
    name="Amnesiac",
    short_names=("amne",),
    card="From night 2 on you may choose a dead player whose role was shown; at dawn you take over that role, with "
    "all its uses. Everyone learns which role was remembered, but not by whom.",
    goal="Remember a role; then you win as that role wins.",
    investigator_place=3,
    abilities=(
        NightAbility(
            verb="remember",
            becomes="remembered",
            tactic="remember",
            help="become what that dead player was",
            step=Step.REPORT,
            effect=_remember,
            aims=_dead,
            first_night=2,
            is_visit=False,
        ),
    ),
)


# The Survivor wants to see the end.
VESTS = 4


def _is_there_at_the_end(state: GameState, player: Player) -> bool:
    # A game that was stopped has no end to live to.
    return player.alive and state.result is not None and state.result.ending != "capped"


SURVIVOR = _benign(
    name="Survivor",
    card=f"You have {VESTS} vests, and each of them lets you survive basic attacks for one night.",
    goal="You win if you are alive when the game ends, whoever else wins.",
    investigator_place=1,
    has_won=_is_there_at_the_end,
    abilities=(replace(VEST_ABILITY, uses=VESTS),),
)


# The Jester wants to be lynched, and takes one of his judges along.
HAUNT_OFFERED = Notice(name="haunt_offered", words="You may haunt one of: {candidates}.")
GOAL_MET = Notice(name="goal_met", words="You have reached your goal. You have won.")

HAUNT = "haunt"


def _haunting(state: GameState, seat: int) -> Haunting | None:
    return next((haunting for haunting in state.hauntings if haunting.seat == seat), None)


def _candidates(state: GameState, player: Player) -> tuple[int, ...]:
    haunting = _haunting(state, player.seat)
    return () if haunting is None else tuple(seat for seat in haunting.candidates if state.players[seat].alive)


def _earn_haunting(state: GameState, player: Player) -> Changed:
    spared = {Ballot.INNOCENT, Ballot.ABSTAIN} if state.options.haunt_pool == "guilty" else {Ballot.INNOCENT}
    pool = tuple(sorted(seat for seat, ballot in state.ballots.items() if ballot not in spared))
    guilty = tuple(seat for seat in pool if state.ballots[seat] is Ballot.GUILTY)
    state = state.with_player(replace(player, has_met_goal=True))
    haunting = Haunting(seat=player.seat, candidates=pool, drawn_from=guilty)
    state = replace(state, hauntings=(*state.hauntings, haunting))
    names: list[JsonValue] = [state.players[seat].name for seat in pool]
    told = (private(state, GOAL_MET, (player.seat,)), private(state, HAUNT_OFFERED, (player.seat,), candidates=names))
    return Changed(state, told)


def _haunt_by_lot(night: NightState, seat: int) -> None:
    """Draw one of those who voted guilty for a Jester who made no choice."""
    haunting = _haunting(night.state, seat)
    if haunting is None or any(action.seat == seat and action.verb == HAUNT for action in night.actions):
        return
    pool = [guilty for guilty in haunting.drawn_from if night.state.players[guilty].alive]
    if pool:
        chosen = night.chance("haunt", seat).choice(pool)
        drawn = NightAction(seat=seat, verb=HAUNT, targets=(chosen,))
        night.notes.append(Note("drawn by lot", (seat,), now=drawn))
        night.actions.append(drawn)


def _jesters_card(roles: Collection[Role], options: Options) -> str:
    whom = "judged you guilty" if options.haunt_pool == "guilty" else "did not judge you innocent"
    return (
        f"You want the Town to lynch you. In the night after, you kill a player of your choice who {whom}, and nothing "
        "can stop it."
    )


JESTER = _evil(
    name="Jester",
    bait="Sheriff",
    card=_jesters_card,
    goal="You win if you are lynched, whoever else wins.",
    investigator_group=6,
    investigator_place=3,
    attack=Level.UNSTOPPABLE,
    is_convertible=True,
    causes=(DeathCause("jester", "taken by a Jester's ghost"),),
    abilities=(
        NightAbility(
            verb=HAUNT,
            help="kill that player",
            step=Step.PREPARE,
            effect=lambda night, action: night.attack(
                action.seat, action.targets[0], is_direct=False, reaches_jail=True
            ),
            aims=_candidates,
            is_visit=False,
            is_offered=lambda state, player: not player.alive,
        ),
    ),
    when_lynched=_earn_haunting,
    by_night={Step.DUSK: _haunt_by_lot},
)


# The Executioner wants one member of the Town lynched.
# Roles the town would lynch too easily or not at all are never an Executioner's quarry.
SPARED = ("jailor", "mayor")


def _draw_quarry(state: GameState, player: Player) -> Player:
    candidates = [other.seat for other in state.living if other.faction is Faction.TOWN and other.role not in SPARED]
    if not candidates:
        return replace(become(state, player, JESTER), became_on=player.became_on)
    return replace(player, quarry=state.chance("quarry", player.seat).choice(candidates))


def _look_at_quarry(state: GameState, player: Player) -> Changed:
    quarry = None if player.quarry is None else state.players[player.quarry]
    if not player.alive or player.has_met_goal or quarry is None or quarry.death is None:
        return Changed(state)
    if quarry.death.causes == (LYNCH.name,):
        state = state.with_player(replace(player, has_met_goal=True))
        return Changed(state, (private(state, GOAL_MET, (player.seat,)),))
    return converted(state, player, JESTER)


EXECUTIONER = _evil(
    name="Executioner",
    short_names=("exe",),
    card="You have a target, a member of the Town, whom you want lynched. You survive basic attacks at night. If your "
    "target dies in any other way, you become a Jester.",
    goal="You win if your target is lynched while you are alive, whoever else wins.",
    investigator_group=5,
    investigator_place=2,
    defence=Level.BASIC,
    is_convertible=True,
    may_become={"jester": "the target died in another way than by a lynch"},
    deal=_draw_quarry,
    after_deaths=_look_at_quarry,
)


# The Witch makes others act as she likes.
SHIELD_SPENT = "shield spent"

CONTROLLED = Notice(
    name="controlled",
    words="Someone made you do what they wanted.",
    befalls="they were controlled",
    says=Says.CONTROLLED,
    hinders=True,
)
CONTROL_RESISTED = Notice(
    name="control_resisted",
    words="Someone tried to control you and failed.",
    befalls="someone tried to control them and failed",
    says=Says.CONTROLLED,
)
CONTROL_FAILED = Notice(name="control_failed", words="{target} could not be controlled.", is_failure=True)


def _control(night: NightState, action: NightAction) -> None:
    puppet, victim = night.house(action), action.targets[1]
    name = night.name_of(action.targets[0])
    if night.role_of(puppet).is_control_immune:
        night.notes.append(Note("control resisted", (puppet,), by=action.seat))
        night.notify(action.seat, CONTROL_FAILED, target=name)
        night.notify(puppet, CONTROL_RESISTED)
        return
    night.notify(action.seat, RESULT, about=name, finding=with_article(night.role_of(puppet).name))
    night.notify(puppet, CONTROLLED)
    night.listen(action.seat, puppet)
    player, abilities = night.player(puppet), night.role_of(puppet).night_abilities.values()
    controlled = next(filter(None, (ability.controlled(night.state, player, victim) for ability in abilities)), None)
    night.notes.append(Note("controlled", (puppet,), by=action.seat, was=night.action_of(puppet), now=controlled))
    night.controlled.add(puppet)
    night.actions = [other for other in night.actions if other.seat != puppet]
    if controlled is not None:
        night.actions.append(controlled)


def _has_outlived_the_town(state: GameState, player: Player) -> bool:
    """Alive at the end, and the Town has not won; in a draw, none of the Town may be left."""
    result = state.result
    if not player.alive or result is None or result.ending == "capped" or "town" in result.winners:
        return False
    return bool(result.winners) or not any(other.faction is Faction.TOWN for other in state.living)


WITCH = _evil(
    name="Witch",
    card="Each night choose a player, and a second player on whom they must use their ability. You learn their role "
    "and what they find. Until you are first attacked, you survive basic attacks. You cannot be blocked or "
    "controlled.",
    goal="You win if you are alive when the game ends and the Town has lost.",
    investigator_group=7,
    investigator_place=3,
    defence=Level.BASIC,
    is_block_immune=True,
    is_control_immune=True,
    is_defence_secret=True,
    is_hostile_to_town=True,
    defence_now=lambda player: Level.NONE if SHIELD_SPENT in player.marks else Level.BASIC,
    when_attacked=lambda night, seat: night.mark_for_good(seat, SHIELD_SPENT),
    has_won=_has_outlived_the_town,
    abilities=(
        NightAbility(
            verb="control",
            tactic="control",
            help="make the first player use their ability on the second player",
            step=Step.CONTROL,
            effect=_control,
            aims=others,
            second_aims=everybody,
        ),
    ),
)
