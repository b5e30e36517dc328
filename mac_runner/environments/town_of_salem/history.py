"""What happened in a game as only its rules know it: who held which role when and what each had learned, each night as
it was resolved, and each death with its killers.

A moment is a place in the list of events; it follows all events before that place. A night is read from its state at
dawn (`play_out`). Its trace is bounded by the seats: one action each, and no more attacks and notes than pairs of
actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from mac_runner.environments.town_of_salem import record
from mac_runner.environments.town_of_salem.model.events import (
    RESULT,
    UNKNOWN_ROLE,
    Event,
    EventKind,
    Says,
    with_article,
)
from mac_runner.environments.town_of_salem.model.role import Judged, NightState, Step
from mac_runner.environments.town_of_salem.model.state import LYNCH, TEAMS, GameState, NightAction, Player
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility, Role


class _Held(NamedTuple):
    since: int
    role: str
    event: Event


class RoleHistory:
    """The roles a game's players held, and the findings they received."""

    def __init__(self, events: Sequence[Event], players: Sequence[Player]) -> None:
        self._dealt = {player.name: player.dealt for player in players}
        self._held: dict[str, list[_Held]] = {player.name: [] for player in players}
        self._learned: dict[str, list[tuple[int, Event]]] = {player.name: [] for player in players}
        self._shown: dict[str, list[tuple[int, str]]] = {player.name: [] for player in players}
        """What all players were shown of a player's role, at a death or by the player."""
        self._actions: dict[tuple[str, int], str] = {}
        names = [player.name for player in players]
        for moment, event in enumerate(events):
            if event.kind in (EventKind.DEATH, EventKind.REVEALED) and event.data["role"] != UNKNOWN_ROLE:
                self._shown[event.text("player")].append((moment, event.text("role").lower()))
            for seat in event.audience or ():
                self._enter(moment, event, names[seat])

    def _enter(self, moment: int, event: Event, name: str) -> None:
        if event.kind in (EventKind.ROLE_CARD, EventKind.CONVERTED):
            self._held[name].append(_Held(moment, event.text("role"), event))
        elif event.notice.is_learned:
            self._learned[name].append((moment, event))
        elif event.kind is EventKind.ACTION_CHOSEN:
            self._actions[name, event.day] = event.text("verb")

    def role_at(self, name: str, moment: int) -> Role:
        """The role a player held at a moment."""
        held = [held.role for held in self._held[name] if held.since < moment]
        return ROLES[held[-1].lower() if held else self._dealt[name]]

    def roles_until(self, name: str, moment: int) -> set[str]:
        """The names of all roles a player had held by a moment."""
        return {held.role for held in self._held[name] if held.since < moment}

    def learned(self, name: str, moment: int) -> list[Event]:
        """What a player had learned by a moment."""
        return [event for since, event in self._learned[name] if since < moment]

    def known_role(self, name: str, about: str, moment: int) -> Role | None:
        """The role that a player knew another to hold, right or wrong; None when they did not know.

        They know their own team, what they learned exactly, and what all were shown.
        """
        own, other = self.role_at(name, moment), self.role_at(about, moment)
        if own.faction in TEAMS and own.faction is other.faction:
            return other
        learned = [role for event in self.learned(name, moment) if (role := _exact_role(event, about)) is not None]
        shown = [ROLES[role] for since, role in self._shown[about] if since < moment]
        known = learned or shown
        return known[-1] if known else None

    def changes(self) -> list[record.RoleChange]:
        """Every change of role in order: the player, both roles, when and why."""
        found: list[tuple[int, record.RoleChange]] = []
        for name, held in self._held.items():
            before = ROLES[self._dealt[name]].name
            for now in held:
                if now.role != before:
                    change = record.RoleChange(
                        day=now.event.day,
                        phase=now.event.phase,
                        player=name,
                        was=before,
                        now=now.role,
                        why=self._why(name, before, now),
                    )
                    found.append((now.since, change))
                before = now.role
        return [change for _, change in sorted(found, key=lambda entry: entry[0])]

    def _why(self, name: str, before: str, now: _Held) -> str:
        if now.event.kind is EventKind.ROLE_CARD:
            return "there was no target to be had"
        old, new = ROLES[before.lower()], ROLES[now.role.lower()]
        verb = self._actions.get((name, now.event.day))
        chosen = (
            ability.becomes for ability in old.abilities if isinstance(ability, NightAbility) and ability.verb == verb
        )
        return next(chosen, "") or new.turns_others or old.may_become.get(new.id, "unknown")


def _exact_role(event: Event, about: str) -> Role | None:
    """The one role that a finding says a player holds."""
    if event.notice.says is Says.ROLES and event.data["target"] == about:
        return ROLES[event.text("role").lower()]
    if event.kind is not RESULT or event.data["about"] != about:
        return None
    name = event.text("finding").partition(" ")[2]
    role = ROLES.get(name.lower())
    return role if role is not None and event.text("finding") == with_article(role.name) else None


def night_row(dusk: GameState, night: NightState) -> record.Night:
    """The trace of the night that `dusk` led into."""
    names = [player.name for player in dusk.players]
    jail = None
    if dusk.prisoner is not None and dusk.keeper is not None:
        jail = record.Jail(jailor=names[dusk.keeper], prisoner=names[dusk.prisoner])
    return record.Night(
        day=dusk.day,
        jail=jail,
        deeds=[
            record.Deed(
                player=names[deed.seat],
                role=ROLES[dusk.players[deed.seat].role].name,
                act=deed.verb,
                targets=[names[target] for target in deed.targets],
                text=deed.text,
            )
            for deed in dusk.deeds
        ],
        changes=[
            record.Change(
                how=note.how,
                players=[names[seat] for seat in note.seats],
                by=None if note.by is None else names[note.by],
                was=_action(note.was, names),
                now=_action(note.now, names),
            )
            for note in night.notes
        ],
        visits=[record.Visit(visitor=names[visit.visitor], house=names[visit.house]) for visit in night.visits],
        protections=[*_protections(night, names)],
        marks=[*_marks(night, names)],
        attacks=[_attack(judged, names) for judged in night.judged],
        findings=[
            record.Finding(player=names[seat], kind=event.notice.name, data=event.data)
            for event in night.events
            if event.notice.is_finding
            for seat in sorted(event.audience or ())
        ],
        deaths=[names[seat] for seat in sorted(night.fatal)],
    )


def _action(action: NightAction | None, names: list[str]) -> record.Action | None:
    if action is None:
        return None
    return record.Action(act=action.verb, targets=[names[target] for target in action.targets], text=action.text)


def _protections(night: NightState, names: list[str]) -> Iterator[record.Protection]:
    given = ((house, protection) for house, of in sorted(night.protections.items()) for protection in of)
    for house, protection in sorted(given, key=lambda one: -one[1].level):
        yield record.Protection(how=protection.how, player=names[house], by=names[protection.by])
    for seat, level in sorted(night.defences.items()):
        own = names[seat]
        yield record.Protection(how="defended", player=own, by=own, strength=level.name.lower())


def _marks(night: NightState, names: list[str]) -> Iterator[record.Mark]:
    for seat, marks in sorted(night.tonight.items()):
        for mark in sorted(marks):
            yield record.Mark(player=names[seat], mark=mark)
    for seat, other in sorted(night.disguises.items()):
        yield record.Mark(player=names[seat], mark="disguised", shown_as=names[other])


def _attack(judged: Judged, names: list[str]) -> record.Attack:
    attack = judged.attack
    return record.Attack(
        attacker=names[attack.attacker],
        victim=names[attack.victim],
        cause=attack.cause.name,
        strength=attack.level.name.lower(),
        defence=None if judged.defence is None else judged.defence.name.lower(),
        outcome=judged.outcome,
    )


def night_of_death(event: Event, nights: Mapping[int, NightState]) -> NightState | None:
    """The night in which the player of a death event died; None for a lynch."""
    return None if event.data["causes"] == [LYNCH.name] else nights.get(event.day - 1)


def death_rows(
    events: Iterable[Event], nights: Mapping[int, NightState], history: RoleHistory, names: Sequence[str]
) -> Iterator[record.Death]:
    """Every death in order; its day is that of the lynch, or of the night."""
    for moment, event in enumerate(events):
        if event.kind is not EventKind.DEATH:
            continue
        name, shown, night = event.text("player"), event.text("role"), night_of_death(event, nights)
        is_lynch = event.data["causes"] == [LYNCH.name]
        attacks = [] if night is None else night.fatal.get(names.index(name), [])
        yield record.Death(
            day=event.day if is_lynch else event.day - 1,
            at="day" if is_lynch else "night",
            player=name,
            role=ROLES[history.role_at(name, moment).id].name,
            role_shown=None if shown == UNKNOWN_ROLE else shown,
            causes=event.names("causes"),
            killers=[*dict.fromkeys(names[attack.attacker] for attack in attacks)],
        )


def effects(dusk: GameState, night: NightState) -> Iterator[tuple[int, bool]]:
    """The seat of each action chosen, and whether it had an effect.

    A kill has one when its victim died or was turned; a block, when it kept something from happening; a protection,
    when what it protects was attacked; what is done to a body, when there was one; a question, when it was answered; a
    wish for a new life, when it came true. All others have one when they happened at all. A choice that the team's hand
    carried out counts as what came of it.
    """
    for chosen in dusk.deeds:
        done = _carried_out(chosen, dusk, night)
        yield chosen.seat, done is not None and _had_effect(done, dusk, night)


def _carried_out(chosen: NightAction, dusk: GameState, night: NightState) -> NightAction | None:
    """What became of a choice: itself, the order of the team, or the same by another of the team; None for nothing."""
    done = night.action_of(chosen.seat)
    settled = {note.how for note in night.notes if note.seats == (chosen.seat,)}
    if done == chosen or "sent by the team" in settled:
        return done
    if "left to another" not in settled:
        return None
    faction = dusk.players[chosen.seat].faction
    team = {player.seat for player in dusk.players if player.faction is faction and faction in TEAMS}
    same = (
        action
        for action in night.actions
        if action.seat in team and (action.verb, action.targets) == (chosen.verb, chosen.targets)
    )
    return next(same, None)


def _had_effect(done: NightAction, dusk: GameState, night: NightState) -> bool:
    seat = done.seat
    # At dawn a player may hold another role.
    ability = ROLES[dusk.players[seat].role].night_abilities[done.verb]
    learned = [event for event in night.events if event.audience is not None and seat in event.audience]
    if any(event.notice.is_failure for event in learned) or any(
        note.how == "target in jail" and note.was == done for note in night.notes
    ):
        return False
    if attacks := [judged for judged in night.judged if judged.attack.attacker == seat]:
        return any(judged.outcome in ("killed", "turned") for judged in attacks)
    if protected := _protected(seat, night):
        return any(judged.attack.victim in protected for judged in night.judged)
    match ability.step:
        case Step.ATTACK:
            return False
        case Step.BLOCK:
            return any(note.how == "blocked" and note.by == seat and note.was is not None for note in night.notes)
        case Step.BURY:
            return _house(done, ability, night) in night.fatal
        case Step.INVESTIGATE | Step.REPORT:
            return seat in night.fulfilled
        case _:
            return True


def _protected(seat: int, night: NightState) -> set[int]:
    """The seats that a player protects tonight, their own too."""
    houses = {house for house, protections in night.protections.items() if any(one.by == seat for one in protections)}
    return houses | ({seat} & night.defences.keys())


def _house(done: NightAction, ability: NightAbility, night: NightState) -> int:
    target = done.targets[ability.visited]
    return night.place(target) if ability.is_moved else target
