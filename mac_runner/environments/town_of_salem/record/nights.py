"""Nights and deaths as they were resolved: what was chosen, what became of it, and who killed.

It is read from the state of the resolved night (`play_out`). Its length is bounded by the seats: one action each, and
no more attacks and notes than pairs of actions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.model.night import Judged, Note
from mac_runner.environments.town_of_salem.model.role import NightState
from mac_runner.environments.town_of_salem.model.state import LYNCH, GameState, NightAction
from mac_runner.environments.town_of_salem.record.role_history import RoleHistory
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.types import JsonObject, JsonValue


def night_row(dusk: GameState, night: NightState) -> JsonObject:
    """The trace of the night that `dusk` led into."""
    names = [player.name for player in dusk.players]
    jail: JsonValue = None
    if dusk.prisoner is not None and dusk.keeper is not None:
        jail = {"jailor": names[dusk.keeper], "prisoner": names[dusk.prisoner]}
    return {
        "day": dusk.day,
        "jail": jail,
        "deeds": [
            {
                "player": names[action.seat],
                "role": ROLES[dusk.players[action.seat].role].name,
                **_action(action, names),
            }
            for action in dusk.deeds
        ],
        "changes": [_change(note, names) for note in night.notes],
        "visits": [{"visitor": names[visit.visitor], "house": names[visit.house]} for visit in night.visits],
        "protections": list[JsonValue]([*_protections(night, names)]),
        "marks": list[JsonValue]([*_marks(night, names)]),
        "attacks": [_attack(judged, names) for judged in night.judged],
        "findings": list[JsonValue]([*_findings(night, names)]),
        "deaths": [names[seat] for seat in sorted(night.fatal)],
    }


def _action(action: NightAction, names: list[str]) -> JsonObject:
    row: JsonObject = {"act": action.verb, "targets": [names[target] for target in action.targets]}
    return {**row, "text": action.text} if action.text else row


def _change(note: Note, names: list[str]) -> JsonObject:
    return {
        "how": note.how,
        "players": [names[seat] for seat in note.seats],
        "by": None if note.by is None else names[note.by],
        "was": None if note.was is None else _action(note.was, names),
        "now": None if note.now is None else _action(note.now, names),
    }


def _protections(night: NightState, names: list[str]) -> Iterator[JsonObject]:
    given = ((house, protection) for house, of in sorted(night.protections.items()) for protection in of)
    for house, protection in sorted(given, key=lambda one: -one[1].level):
        yield {"how": protection.how, "player": names[house], "by": names[protection.by]}
    for seat, level in sorted(night.defences.items()):
        yield {"how": "defended", "player": names[seat], "by": names[seat], "strength": level.name.lower()}


def _marks(night: NightState, names: list[str]) -> Iterator[JsonObject]:
    for seat, marks in sorted(night.tonight.items()):
        for mark in sorted(marks):
            yield {"player": names[seat], "mark": mark}
    for seat, other in sorted(night.disguises.items()):
        yield {"player": names[seat], "mark": "disguised", "as": names[other]}


def _attack(judged: Judged, names: list[str]) -> JsonObject:
    attack = judged.attack
    return {
        "attacker": names[attack.attacker],
        "victim": names[attack.victim],
        "cause": attack.cause.name,
        "strength": attack.level.name.lower(),
        "defence": None if judged.defence is None else judged.defence.name.lower(),
        "outcome": judged.outcome,
    }


def _findings(night: NightState, names: list[str]) -> Iterator[JsonObject]:
    for event in night.events:
        if event.notice.is_finding:
            for seat in sorted(event.audience or ()):
                yield {"player": names[seat], "kind": event.notice.name, "data": event.data}


def night_of_death(event: Event, nights: Mapping[int, NightState]) -> NightState | None:
    """The night in which the player of a death event died; None for a lynch."""
    return None if event.data["causes"] == [LYNCH.name] else nights.get(event.day - 1)


def death_rows(
    events: Iterable[Event], nights: Mapping[int, NightState], history: RoleHistory, names: Sequence[str]
) -> list[JsonValue]:
    """Every death in order; a lynch has no killers, its trial has the votes and ballots.

    `day` is that of the lynch, or of the night.
    """
    return [
        _death(moment, event, nights, history, names)
        for moment, event in enumerate(events)
        if event.kind is EventKind.DEATH
    ]


def _death(
    moment: int, event: Event, nights: Mapping[int, NightState], history: RoleHistory, names: Sequence[str]
) -> JsonObject:
    name, causes = event.text("player"), event.data["causes"]
    night = night_of_death(event, nights)
    is_lynch = causes == [LYNCH.name]
    attacks = [] if night is None else night.fatal.get(names.index(name), [])
    shown = event.data["role"]
    return {
        "day": event.day if is_lynch else event.day - 1,
        "at": "day" if is_lynch else "night",
        "player": name,
        "role": ROLES[history.role_at(name, moment).id].name,
        "role_shown": None if shown == UNKNOWN_ROLE else shown,
        "causes": causes,
        "killers": [*dict.fromkeys(names[attack.attacker] for attack in attacks)],
    }
