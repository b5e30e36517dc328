"""The Mafia: killing, deception and support (rules, section 8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import (
    TARGET_JAILED,
    EventKind,
    Notice,
    Says,
    private,
    with_article,
)
from mac_runner.environments.town_of_salem.model.role import (
    Alignment,
    Changed,
    Level,
    NightAbility,
    NightState,
    Role,
    Step,
    converted,
    fellows,
    outsiders,
    strike,
)
from mac_runner.environments.town_of_salem.model.state import (
    DeathCause,
    Faction,
    GameState,
    NightAction,
    Player,
    holder,
)
from mac_runner.environments.town_of_salem.roles.town import BLOCK_ABILITY

KILL = "kill"
_PROMOTED = "promoted by the Mafia"
RANKS = {"mafioso": _PROMOTED, "godfather": _PROMOTED}
"""The roles that any member may rise to, and why."""
_role = partial(
    Role,
    faction=Faction.MAFIA,
    goal="You win with the Mafia when the Town and all others who could stop you are dead.",
    in_common=(
        "Its members talk at night, and it kills one player a night. If the Godfather and the Mafioso are both dead, "
        "another member becomes the Mafioso."
    ),
    group="mafia",
)
_killing = partial(
    _role,
    alignment=Alignment.MAFIA_KILLING,
    attack=Level.BASIC,
    is_unique=True,
    leaves_notes=True,
    causes=(DeathCause("mafia", "killed by the Mafia", guard_order=0, is_visible=True),),
)
_deception = partial(_role, alignment=Alignment.MAFIA_DECEPTION, may_become=RANKS)
_support = partial(_role, alignment=Alignment.MAFIA_SUPPORT, may_become=RANKS)


def _settle_who_kills(night: NightState) -> None:
    """Give the night's one kill to the hand that does it: the Mafioso if he is able, else the Godfather."""
    orders = {action.seat: action for action in night.actions if action.verb == KILL}
    boss = holder(night.state, GODFATHER.id)
    hand = holder(night.state, MAFIOSO.id)
    if hand is None or not night.is_able(hand.seat):
        return
    order = orders.get(boss.seat) if boss is not None and night.is_able(boss.seat) else None
    is_own = hand.seat in night.controlled and night.state.options.mafioso_control == "control"
    if order is None or (is_own and hand.seat in orders):
        night.actions = [action for action in night.actions if action.verb != KILL or action.seat == hand.seat]
        return
    night.actions = [action for action in night.actions if action.verb != KILL]
    night.actions.append(replace(order, seat=hand.seat))


KILL_ABILITY = NightAbility(
    verb=KILL,
    tactic="kill",
    is_kill=True,
    help="have the Mafia kill that player tonight; the Godfather's choice goes before all others",
    step=Step.ATTACK,
    effect=strike,
    aims=outsiders,
    orders=_settle_who_kills,
)


def promote(state: GameState, fallen: Sequence[Player]) -> Changed:
    """Close the ranks after `fallen` died: a Mafioso follows a Godfather; with neither left, one other member, drawn by
    lot, becomes Mafioso.
    """
    living = [player for player in state.living if player.faction is Faction.MAFIA]
    if not living or any(player.role == GODFATHER.id for player in living):
        return Changed(state)
    heir = next((player for player in living if player.role == MAFIOSO.id), None)
    if heir is not None and all(player.role != GODFATHER.id for player in fallen):
        return Changed(state)
    role = GODFATHER if heir else MAFIOSO
    heir = heir or state.chance("promotion", state.day, state.phase).choice(living)
    promoted = converted(state, heir, role)
    if not (others := [player.seat for player in living if player.seat != heir.seat]):
        return promoted
    told = private(state, EventKind.TEAM_CHANGED, others, player=heir.name, role=role.name)
    return Changed(promoted.state, (*promoted.events, told))


GODFATHER = _killing(
    name="Godfather",
    is_key=True,
    short_names=("GF",),
    card="Each night choose whom the Mafia kills. A Mafioso who can act carries out the kill for you. A Sheriff "
    "does not find you suspicious. You survive basic attacks at night.",
    investigator_group=11,
    investigator_place=2,
    defence=Level.BASIC,
    is_detection_immune=True,
    outlasts=lambda other: other.id == "transporter",
    team_rank=2,
    abilities=(KILL_ABILITY,),
)


MAFIOSO = _killing(
    name="Mafioso",
    team_rank=1,
    card="Each night carry out the Mafia's kill, on the Godfather's choice or, if he makes none, on your own. When the "
    "Godfather dies, you take his place.",
    investigator_group=1,
    investigator_place=3,
    may_become={"godfather": _PROMOTED},
    abilities=(KILL_ABILITY,),
)


# The Disguiser makes one of the Mafia pass for another player.
DISGUISE = "disguise"


def _disguise(night: NightState, action: NightAction) -> None:
    member = action.targets[0]
    if member == night.state.prisoner:
        night.notify(action.seat, TARGET_JAILED, target=night.name_of(member))
        return
    night.disguises[member] = night.house(action)


DISGUISER = _deception(
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
            aims=fellows,
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
    if body.death is not None:
        night.spend(action)
        night.put(replace(body, death=replace(body.death, forged_will=action.text)))


FORGER = _deception(
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

FRAMER = _deception(
    name="Framer",
    card="Each night frame one player: that night they look suspicious to a Sheriff and like a Framer to an "
    "Investigator.",
    investigator_group=6,
    investigator_place=1,
    abilities=(
        NightAbility(
            verb="frame",
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
    if body.death is not None:
        night.spend(action)
        night.put(replace(body, death=replace(body.death, is_cleaned=True)))
        role = night.role_of(body.seat).name
        night.notify(action.seat, CLEANED, target=body.name, role=role, legacy=body.will)


JANITOR = _deception(
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


# The Blackmailer silences one player for the next day and reads all whispers.
BLACKMAILED = Notice(
    name="blackmailed",
    words="You are blackmailed: tomorrow you cannot speak or whisper by day.",
    befalls="they were blackmailed",
    says=Says.BLACKMAILED,
)


def _blackmail(night: NightState, action: NightAction) -> None:
    house = night.house(action)
    night.put(replace(night.player(house), is_blackmailed=True))
    night.notify(house, BLACKMAILED)


BLACKMAILER = _support(
    name="Blackmailer",
    short_names=("BM",),
    card="Each night silence one player: on the next day they cannot speak or whisper, not even in their own "
    "defence. They can still vote and judge. You read all whispers.",
    investigator_group=4,
    investigator_place=2,
    reads_whispers=lambda options: True,
    abilities=(
        NightAbility(
            verb="blackmail",
            tactic="silence",
            help="keep that player from speaking and whispering on the next day",
            step=Step.PROTECT,
            effect=_blackmail,
            aims=outsiders,
        ),
    ),
)


CONSIGLIERE = _support(
    name="Consigliere",
    shares_roles=True,
    short_names=("consig",),
    card="Each night learn the exact role of one player. Frames and petrol do not mislead you.",
    investigator_group=10,
    investigator_place=2,
    abilities=(
        NightAbility(
            verb="look_into",
            tactic="ask",
            help="learn that player's exact role",
            step=Step.INVESTIGATE,
            effect=lambda night, action: night.find(action, with_article(night.role_of(night.house(action)).name)),
            aims=outsiders,
        ),
    ),
)


CONSORT = _support(
    name="Consort",
    card="Each night block one player: what they chose to do that night does not happen. You cannot be blocked.",
    investigator_group=8,
    investigator_place=3,
    is_block_immune=True,
    abilities=(replace(BLOCK_ABILITY, aims=outsiders),),
)
