"""Which of the actions chosen at night had an effect.

A kill has one when its victim died or was turned; a block, when it kept something from happening; a protection, when
what it protects was attacked; what is done to a body, when there was one; a question, when it was answered.
All others have one when they happened at all. A choice that the team's hand carried out counts as what came of that.
"""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.environments.town_of_salem.model.events import EventKind
from mac_runner.environments.town_of_salem.model.night import Step
from mac_runner.environments.town_of_salem.model.role import NightState
from mac_runner.environments.town_of_salem.model.state import TEAMS, GameState, NightAction
from mac_runner.environments.town_of_salem.roles import ROLES, NightAbility


def effects(dusk: GameState, night: NightState) -> Iterator[tuple[int, bool]]:
    """The seat of each action chosen, and whether it had an effect."""
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
            return seat in night.answered or any(event.kind is EventKind.CONVERTED for event in learned)
        case _:
            return True


def _protected(seat: int, night: NightState) -> set[int]:
    """The seats that a player protects tonight, their own too."""
    houses = {house for house, protections in night.protections.items() if any(one.by == seat for one in protections)}
    return houses | ({seat} & night.defences.keys())


def _house(done: NightAction, ability: NightAbility, night: NightState) -> int:
    target = done.targets[ability.visited]
    return night.place(target) if ability.is_moved else target
