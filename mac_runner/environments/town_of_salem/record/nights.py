"""Nights and deaths as they were resolved: what was chosen, what became of it, and who killed.

It is read from the state of the resolved night (`play_out`). Its length is bounded by the seats: one action each, and
no more attacks and notes than pairs of actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mac_runner.environments.town_of_salem import record
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.model.role import Judged, NightState, Step
from mac_runner.environments.town_of_salem.model.state import LYNCH, TEAMS, GameState, NightAction
from mac_runner.environments.town_of_salem.record.role_history import RoleHistory
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility


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
    ability = ROLES[dusk.players[seat].role].night_ability(done.verb)
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
