"""One night as it was resolved: what was chosen, what became of it, and why.

Read off the pad of the night (`night.play_out`). Its length is bounded by the seats: one deed each, and no more attacks
and notes than deeds can meet deeds.
"""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.environments.town_of_salem.events import EventKind
from mac_runner.environments.town_of_salem.night import Judged, NightState, Note
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.state import Deed, GameState
from mac_runner.types import JsonObject, JsonValue

_FINDINGS = frozenset(
    {
        EventKind.RESULT,
        EventKind.MAFIA_VISITS,
        EventKind.BUGGED,
        EventKind.PATIENT_ATTACKED,
        EventKind.VISITED,
        EventKind.CLEANED,
    }
)


def night_told(dusk: GameState, night: NightState) -> JsonObject:
    """The trace of the night that `dusk` led into."""
    names = [player.name for player in dusk.players]
    jail: JsonValue = None
    if dusk.prisoner is not None and dusk.keeper is not None:
        jail = {"jailor": names[dusk.keeper], "prisoner": names[dusk.prisoner]}
    return {
        "day": dusk.day,
        "jail": jail,
        "deeds": [
            {"player": names[deed.seat], "role": _role(dusk, deed.seat), **_deed(deed, names)} for deed in dusk.deeds
        ],
        "changes": [_change(note, names) for note in night.notes],
        "visits": [{"visitor": names[visit.visitor], "house": names[visit.house]} for visit in night.visits],
        "protections": list[JsonValue]([*_protections(night, names)]),
        "marks": list[JsonValue]([*_marks(night, names)]),
        "attacks": [_attack(judged, names) for judged in night.judged],
        "findings": list[JsonValue]([*_findings(night, names)]),
        "deaths": [names[seat] for seat in sorted(night.fatal)],
    }


def _role(dusk: GameState, seat: int) -> str:
    return ROLES[dusk.players[seat].role].name


def _deed(deed: Deed, names: list[str]) -> JsonObject:
    told: JsonObject = {"act": deed.verb, "targets": [names[target] for target in deed.targets]}
    return {**told, "text": deed.text} if deed.text else told


def _change(note: Note, names: list[str]) -> JsonObject:
    return {
        "how": note.how,
        "players": [names[seat] for seat in note.seats],
        "by": None if note.by is None else names[note.by],
        "was": None if note.was is None else _deed(note.was, names),
        "now": None if note.now is None else _deed(note.now, names),
    }


def _protections(night: NightState, names: list[str]) -> Iterator[JsonObject]:
    guards = {house: [guard.seat for guard in guards] for house, guards in night.guards.items()}
    for how, protectors in (("healed", night.healers), ("guarded", guards)):
        for house, seats in sorted(protectors.items()):
            for seat in seats:
                yield {"how": how, "player": names[house], "by": names[seat]}
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
        if event.kind in _FINDINGS:
            for seat in sorted(event.audience or ()):
                yield {"player": names[seat], "kind": event.kind.value, "data": event.data}
