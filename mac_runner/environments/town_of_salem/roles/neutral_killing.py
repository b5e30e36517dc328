"""Neutral Killing and Chaos: Arsonist, Serial Killer, Werewolf and Vampire (rules, sections 7.3, 9 and 10)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import EventKind, Notice, Says, private
from mac_runner.environments.town_of_salem.model.role import (
    DOUSED,
    Alignment,
    Changed,
    DayAbility,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    become,
    fellows,
    join_team,
    others,
    outsiders,
    strike,
)
from mac_runner.environments.town_of_salem.model.state import DeathCause, Faction, GameState, NightAction, Player

_role = partial(
    Role,
    faction=Faction.NEUTRAL,
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


ARSONIST = _role(
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
            is_visit=False,
        ),
        NightAbility(
            verb="wash",
            tactic="at_once",
            help="wash off the petrol that another Arsonist poured over you",
            step=Step.PROTECT,
            effect=_wash,
            is_visit=False,
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


SERIAL_KILLER = _role(
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


WEREWOLF = _role(
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
