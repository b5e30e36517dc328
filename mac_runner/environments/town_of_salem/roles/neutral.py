"""Neutral Benign and Neutral Evil: those who win alone (rules, section 11, and section 6, step 3)."""

from __future__ import annotations

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
    Alignment,
    Changed,
    Level,
    NightAbility,
    NightState,
    Note,
    Role,
    Step,
    become,
    converted,
    everybody,
    join_team,
    others,
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
from mac_runner.environments.town_of_salem.roles.neutral_killing import BITTEN
from mac_runner.environments.town_of_salem.roles.town_protective import VEST_ABILITY
from mac_runner.types import JsonValue

_role = partial(Role, faction=Faction.NEUTRAL, group=None, is_detection_immune=True)
_benign = partial(_role, alignment=Alignment.NEUTRAL_BENIGN, investigator_group=3, is_convertible=True)
_evil = partial(_role, alignment=Alignment.NEUTRAL_EVIL)


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
    night.announce(public(night.state, EventKind.REMEMBERED, role=role.name))
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
    controlled = _controlled_action(night, puppet, victim)
    night.notes.append(Note("controlled", (puppet,), by=action.seat, was=night.action_of(puppet), now=controlled))
    night.controlled.add(puppet)
    night.actions = [other for other in night.actions if other.seat != puppet]
    if controlled is not None:
        night.actions.append(controlled)


def _controlled_action(night: NightState, puppet: int, victim: int) -> NightAction | None:
    player = night.player(puppet)
    for ability in night.role_of(puppet).abilities:
        if isinstance(ability, NightAbility):
            action = ability.controlled(night.state, player, victim)
            if action is not None:
                return action
    return None


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
