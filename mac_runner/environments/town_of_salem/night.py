"""One night, resolved in the order of the rules (section 6): orders, visits, blocks, marks, findings, attacks, deaths.

`Night` is the scratch pad the abilities write on; it lives for one call of `resolve`, which is pure: the same state
gives the same dawn. Everything is gathered first and judged at the end, so that a killer who dies still kills.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple

from mac_runner.environments.town_of_salem.events import Event, EventKind, private
from mac_runner.environments.town_of_salem.roles import ROLES, Changed, Level, NightAbility, Role, Step
from mac_runner.environments.town_of_salem.state import Death, Deed, GameState
from mac_runner.types import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack of the night; `cause` is the category shown at dawn. Only direct ones can be stepped in front of."""

    attacker: int
    victim: int
    level: Level
    cause: str
    is_direct: bool


class Visit(NamedTuple):
    """Who went to whose house."""

    visitor: int
    house: int


class Night:
    """What is being done this night. Abilities read and write it through the methods below."""

    def __init__(self, state: GameState) -> None:
        self.state = state
        self.deeds = list(state.deeds)
        self.visits: list[Visit] = []
        self.tonight: dict[int, set[str]] = defaultdict(set)
        self.healers: dict[int, list[int]] = defaultdict(list)
        self.attacks: list[Attack] = []
        self.events: list[Event] = []
        self._blocked: set[int] = set()

    def house(self, deed: Deed) -> int:
        """The house a deed with one target ends up at."""
        return deed.targets[0]

    def role_of(self, seat: int) -> Role:
        """The role `seat` holds tonight."""
        return ROLES[self.state.players[seat].role]

    def name_of(self, seat: int) -> str:
        """The player's public name."""
        return self.state.players[seat].name

    def chance(self, *purpose: str | int) -> Random:
        """The generator of one random decision of this night."""
        return self.state.chance("night", self.state.day, *purpose)

    def tell(self, seat: int, kind: EventKind, **data: JsonValue) -> None:
        """Let one player know."""
        self.events.append(private(self.state, kind, (seat,), **data))

    def is_able(self, seat: int) -> bool:
        """Whether `seat` can still act tonight: neither jailed nor blocked."""
        return seat != self.state.prisoner and seat not in self._blocked

    def block(self, blocker: int, target: int) -> None:
        """Role-block `target` (step 5); the immune are told, and so is their visitor."""
        if self.role_of(target).is_block_immune:
            self.tell(blocker, EventKind.BLOCK_FAILED, target=self.name_of(target))
            self.tell(target, EventKind.BLOCK_RESISTED)
            return
        self._blocked.add(target)
        self.tell(target, EventKind.BLOCKED)

    def attack(self, attacker: int, victim: int, level: Level, cause: str, *, is_direct: bool) -> None:
        """Put one attack on the list that `resolve` judges."""
        self.attacks.append(Attack(attacker=attacker, victim=victim, level=level, cause=cause, is_direct=is_direct))

    def mark_for_good(self, seat: int, mark: str) -> None:
        """Give a player a mark that outlasts the night."""
        player = self.state.players[seat]
        self.state = self.state.with_player(replace(player, marks=player.marks | {mark}))

    def set_uses(self, seat: int, verb: str, left: int) -> None:
        """Set what is left of a limited ability."""
        player = self.state.players[seat]
        self.state = self.state.with_player(replace(player, uses={**player.uses, verb: left}))

    def ability(self, deed: Deed) -> NightAbility:
        """The ability a deed uses. A deed always names one its role has."""
        for ability in self.role_of(deed.seat).abilities:
            if isinstance(ability, NightAbility) and ability.verb == deed.verb:
                return ability
        raise LookupError(f"{self.role_of(deed.seat).name} has no night ability {deed.verb!r}")


def resolve(state: GameState) -> Changed:
    """Play the night's deeds and return the state at dawn: deaths recorded, one-night effects gone."""
    night = Night(state)
    night.deeds = [deed for deed in night.deeds if deed.seat != state.prisoner]
    for player in state.players:
        night.role_of(player.seat).by_night(night, player.seat)
    _play(night, Step.PREPARE)
    _play(night, Step.BLOCK)
    night.deeds = [deed for deed in night.deeds if deed.seat not in night._blocked]
    _settle_orders(night)
    _settle_visits(night)
    for step in (Step.PROTECT, Step.INVESTIGATE, Step.ATTACK):
        _play(night, step)
    _judge_attacks(night)
    night.state = replace(night.state, deeds=(), hauntings=(), jail_choice=None, prisoner=None, seance=None, ballots={})
    return Changed(night.state, tuple(night.events))


def _play(night: Night, step: Step) -> None:
    """Play the deeds of one step in seat order, spending a use of what is limited."""
    for deed in sorted(night.deeds, key=lambda deed: deed.seat):
        ability = night.ability(deed)
        if ability.step is not step or not _reaches(night, deed, ability):
            continue
        if ability.uses is not None:
            night.set_uses(deed.seat, deed.verb, night.state.players[deed.seat].uses[deed.verb] - 1)
        ability.effect(night, deed)


def _reaches(night: Night, deed: Deed, ability: NightAbility) -> bool:
    """Whether a deed reaches its target: nobody's visit reaches a prisoner, and the visitor is told so."""
    if not ability.is_visit or not deed.targets or night.house(deed) != night.state.prisoner:
        return True
    night.tell(deed.seat, EventKind.TARGET_JAILED, target=night.name_of(deed.targets[0]))
    if ability.step is Step.BLOCK:
        night.tell(night.house(deed), EventKind.BLOCK_RESISTED)
    return False


def _settle_orders(night: Night) -> None:
    abilities = {
        ability.verb: ability
        for player in night.state.players
        for ability in night.role_of(player.seat).abilities
        if isinstance(ability, NightAbility)
    }
    for verb in sorted(abilities):
        orders = abilities[verb].orders
        if orders is not None:
            orders(night)


def _settle_visits(night: Night) -> None:
    for deed in sorted(night.deeds, key=lambda deed: deed.seat):
        if night.ability(deed).is_visit and deed.targets and night.house(deed) != deed.seat:
            night.visits.append(Visit(deed.seat, night.house(deed)))


def _judge_attacks(night: Night) -> None:
    """Compare each attack with the victim's best defence (step 10) and record the deaths."""
    fatal: dict[int, list[Attack]] = defaultdict(list)
    for attack in night.attacks:
        is_healed = bool(night.healers[attack.victim])
        defence = max(night.role_of(attack.victim).defence, Level.POWERFUL if is_healed else Level.NONE)
        if attack.level > defence:
            fatal[attack.victim].append(attack)
        else:
            night.tell(attack.attacker, EventKind.DEFENCE_TOO_STRONG, target=night.name_of(attack.victim))
    for victim in sorted({attack.victim for attack in night.attacks}):
        if victim not in fatal:
            saved_by = "a Doctor" if night.healers[victim] else "your own defence"
            night.tell(victim, EventKind.ATTACKED, saved_by=saved_by)
        for healer in night.healers[victim]:
            night.tell(healer, EventKind.PATIENT_ATTACKED, target=night.name_of(victim))
    for seat, attacks in sorted(fatal.items()):
        notes = (night.state.players[attack.attacker].death_note for attack in attacks)
        death = Death(
            day=night.state.day,
            at_night=True,
            causes=tuple(sorted({attack.cause for attack in attacks})),
            notes=tuple(note for note in notes if note),
        )
        night.state = night.state.with_player(replace(night.state.players[seat], death=death))
