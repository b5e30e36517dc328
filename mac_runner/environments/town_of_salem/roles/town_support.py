"""FIXME Escort: keeps one player from acting (rules, section 7.3 and section 6 step 5).

Mayor: once revealed, his vote weighs three (rules, section 7.9).

Medium: speaks with the dead, and once, when dead, with one of the living (rules, section 7.10).

The night chat with the dead belongs to every living Medium and is laid out in `channels`.

Retributionist: has the dead of the Town act once more, or brings one back (rules, section 7.11).

Transporter: swaps two players for a night (rules, section 6 step 1).
"""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.town_of_salem.game.events import EventKind, private, public
from mac_runner.environments.town_of_salem.game.state import Deed, Faction, GameState, Player, Seance
from mac_runner.environments.town_of_salem.night.state import NightState, Step
from mac_runner.environments.town_of_salem.roles import catalogue, tactics
from mac_runner.environments.town_of_salem.roles.base import (
    TOWN_GOAL,
    Alignment,
    Changed,
    DayAbility,
    NightAbility,
    Role,
    others,
)
from mac_runner.environments.town_of_salem.roles.town_killing import GUILTY

BLOCK_ABILITY = NightAbility(
    verb="block",
    tactic=tactics.block,
    help="keep that player from acting tonight",
    step=Step.BLOCK,
    effect=lambda night, deed: night.block(deed.seat, night.house(deed)),
    aims=others,
)

ESCORT = Role(
    name="Escort",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night block one player: whatever they chose to do that night does not happen. You cannot be blocked.",
    goal=TOWN_GOAL,
    group="town",
    is_raisable=True,
    investigator_group=8,
    investigator_place=1,
    is_block_immune=True,
    yields_to=lambda player, other: other.faction is Faction.MAFIA,
    abilities=(BLOCK_ABILITY,),
)


REVEAL = "reveal"
WEIGHT = 3


def _is_revealed(player: Player) -> bool:
    return player.uses[REVEAL] == 0


def _reveal(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    state = state.with_player(replace(player, uses={**player.uses, REVEAL: 0}))
    return Changed(state, (public(state, EventKind.REVEALED, player=player.name, role=MAYOR.name),))


MAYOR = Role(
    name="Mayor",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card=f"Once in the game you may reveal yourself by day. From then on your vote and your ballot weigh {WEIGHT}, you "
    "cannot whisper or be whispered to, and a Doctor cannot heal you.",
    goal=TOWN_GOAL,
    group="town",
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
            help=f"show everybody that you are the Mayor; from then on your vote weighs {WEIGHT}",
            effect=_reveal,
            uses=1,
        ),
    ),
)


def _seance(state: GameState, player: Player, targets: tuple[int, ...]) -> Changed:
    (target,) = targets
    spent = replace(player, uses={**player.uses, "seance": player.uses["seance"] - 1})
    state = replace(state.with_player(spent), seance=Seance(medium=player.seat, target=target))
    return Changed(state, (private(state, EventKind.SEANCE_CHOSEN, (player.seat,), target=state.players[target].name),))


MEDIUM = Role(
    name="Medium",
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="While you live, you talk with all the dead every night; to them you are only `Medium`. Once you are dead, "
    "you may choose one living player by day, once in the game, and talk with them in the coming night.",
    goal=TOWN_GOAL,
    group="town",
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
            aims=others,
            is_offered=lambda state, player: not player.alive and state.seance is None,
            uses=1,
        ),
    ),
)


RAISED = "raised"
REVIVE = "revive"


def _ability_of(state: GameState, corpse: Player) -> NightAbility | None:
    """What a corpse can still do for somebody: its role's ability with one target, if there is a use left."""
    role = catalogue.role(corpse.role)
    is_known = corpse.shown_role == corpse.role
    if not is_known or not role.is_raisable or RAISED in corpse.marks:
        return None
    for ability in role.abilities:
        if isinstance(ability, NightAbility) and ability.aims is not None and ability.is_ready(state, corpse):
            return ability
    return None


def _corpses(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead who were shown as what can be raised; trying shows whether they were that and had a use left."""
    return tuple(
        other.seat
        for other in state.players
        if other.shown_role is not None and catalogue.role(other.shown_role).is_raisable and RAISED not in other.marks
    )


def _raise(night: NightState, deed: Deed) -> None:
    corpse, target = deed.targets
    ability = _ability_of(night.state, night.player(corpse))
    night.mark_for_good(corpse, RAISED)
    if ability is None:
        night.tell(deed.seat, EventKind.FAILED, target=night.name_of(corpse))
        return
    night.listen(deed.seat, corpse)
    raised = Deed(seat=corpse, verb=ability.verb, targets=(target,))
    night.note("raised", corpse, by=deed.seat, now=raised)
    night.deeds.append(raised)


def _fallen(state: GameState, player: Player) -> tuple[int, ...]:
    """The dead who were shown to be of the Town and may come back: not in the way of a unique role."""
    held = {other.role for other in state.living}
    shown = {other.seat: catalogue.role(other.shown_role) for other in state.players if other.shown_role is not None}
    return tuple(
        seat
        for seat, role in shown.items()
        if role.faction is Faction.TOWN and not (role.is_unique and role.id in held)
    )


def _revive(night: NightState, deed: Deed) -> None:
    (seat,) = deed.targets
    corpse = night.player(seat)
    if seat not in _fallen(night.state, night.player(deed.seat)) or corpse.shown_role != corpse.role:
        night.tell(deed.seat, EventKind.FAILED, target=night.name_of(seat))
        return
    # Who died of guilt has paid for it.
    revived = night.player(seat)
    night.put(replace(revived, death=None, marks=revived.marks - {GUILTY}))
    night.announce(public(night.state, EventKind.REVIVED, player=night.name_of(seat)))


RETRIBUTIONIST = Role(
    name="Retributionist",
    short_names=("retri",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night have one dead member of the Town, whose role was shown, use their ability once more on a living "
    "player; you learn what they find. Each of the dead can do so once, and not all can: a Jailor, Mayor, Medium, "
    "Veteran, Transporter or Retributionist cannot. In a game with retribution of the old kind you bring back one dead "
    "member of the Town for good instead, once. You cannot be blocked or controlled.",
    goal=TOWN_GOAL,
    group="town",
    investigator_group=2,
    investigator_place=3,
    worth=3.0,
    is_unique=True,
    is_block_immune=True,
    is_control_immune=True,
    abilities=(
        NightAbility(
            verb="raise",
            tactic=tactics.raise_dead,
            help="have the first player, who is dead, use their ability on the second one",
            step=Step.PREPARE,
            effect=_raise,
            aims=_corpses,
            second_aims=others,
            is_visit=False,
            is_offered=lambda state, player: player.alive and state.options.retri == "raise",
        ),
        NightAbility(
            verb=REVIVE,
            tactic=tactics.anybody,
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


def _anybody(state: GameState, player: Player) -> tuple[int, ...]:
    return tuple(other.seat for other in state.living)


def _swap(night: NightState, deed: Deed) -> None:
    for target in dict.fromkeys(deed.targets):
        night.visit(deed.seat, target)
    one, other = deed.targets
    if night.state.prisoner in deed.targets:
        night.note("target in jail", deed.seat, was=deed)
        night.tell(deed.seat, EventKind.TARGET_JAILED, target=night.name_of(night.state.prisoner))
    elif one != other:
        night.note("moved", one, other, by=deed.seat)
        night.swap(one, other)
        for moved in deed.targets:
            night.tell(moved, EventKind.TRANSPORTED)


TRANSPORTER = Role(
    name="Transporter",
    short_names=("TP",),
    faction=Faction.TOWN,
    alignment=Alignment.TOWN_SUPPORT,
    card="Each night swap two players, yourself among them if you like: whoever aims at one reaches the other. Both "
    "learn that they were moved. You cannot be blocked or controlled.",
    goal=TOWN_GOAL,
    group="town",
    investigator_group=8,
    investigator_place=2,
    is_block_immune=True,
    is_control_immune=True,
    outlasts=lambda other: other.id == "mafioso",
    abilities=(
        NightAbility(
            verb="swap",
            tactic=tactics.swap,
            help="swap two players tonight: whoever aims at one reaches the other",
            step=Step.TRANSPORT,
            effect=_swap,
            aims=_anybody,
            second_aims=_anybody,
            is_visit=False,
        ),
    ),
)
