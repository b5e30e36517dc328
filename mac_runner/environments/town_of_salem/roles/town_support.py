"""Town Support: Escort, Mayor, Medium, Retributionist, Transporter (rules, sections 6, 7.3 and 7.9 to 7.11)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from mac_runner.environments.town_of_salem.model.events import (
    FAILED,
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
    NightAbility,
    NightState,
    Note,
    Role,
    Step,
    everybody,
    others,
)
from mac_runner.environments.town_of_salem.model.state import Faction, GameState, NightAction, Options, Player, Seance
from mac_runner.environments.town_of_salem.roles.catalogue import ROLES
from mac_runner.environments.town_of_salem.roles.town_killing import GUILTY

_role = partial(Role, faction=Faction.TOWN, alignment=Alignment.TOWN_SUPPORT, goal=TOWN_GOAL, group="town")

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

ESCORT = _role(
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
    state = state.with_player(replace(player, uses={**player.uses, REVEAL: 0}))
    return Changed(state, (public(state, EventKind.REVEALED, player=player.name, role=MAYOR.name),))


MAYOR = _role(
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
    is_healable=lambda player: not _is_revealed(player),
    may_whisper=lambda player: not _is_revealed(player),
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


# The Medium speaks with the dead, in a channel of `rules.channels`, and once, when dead, with one of the living
# (rules, section 7.10).
def _seance(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    (target,) = targets
    spent = replace(player, uses={**player.uses, "seance": player.uses["seance"] - 1})
    state = replace(state.with_player(spent), seance=Seance(medium=player.seat, target=target))
    return Changed(state, (private(state, EventKind.SEANCE_CHOSEN, (player.seat,), target=state.players[target].name),))


MEDIUM = _role(
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
    for ability in role.abilities:
        if isinstance(ability, NightAbility) and ability.visits_one and ability.is_ready(state, corpse):
            return ability
    return None


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
    night.announce(public(night.state, EventKind.REVIVED, player=night.name_of(seat)))


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


RETRIBUTIONIST = _role(
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
            tactic="anybody",
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


TRANSPORTER = _role(
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
