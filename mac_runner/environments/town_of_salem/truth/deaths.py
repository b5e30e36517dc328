"""Deaths with who brought them about, which no player is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mac_runner.environments.town_of_salem.events import UNKNOWN_ROLE, Event, EventKind
from mac_runner.environments.town_of_salem.night import NightState
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.state import LYNCH
from mac_runner.environments.town_of_salem.truth.lives import Lives
from mac_runner.types import JsonObject, JsonValue


def deaths_told(
    events: Iterable[Event], nights: Mapping[int, NightState], lives: Lives, names: Sequence[str]
) -> list[JsonValue]:
    """Every death in order; of a lynch there are no killers, the trial says who voted and judged.

    `day` is that of the lynch, or of the night.
    """
    return [
        _death(moment, event, nights, lives, names)
        for moment, event in enumerate(events)
        if event.kind is EventKind.DEATH
    ]


def _death(
    moment: int, event: Event, nights: Mapping[int, NightState], lives: Lives, names: Sequence[str]
) -> JsonObject:
    name, causes = str(event.data["player"]), event.data["causes"]
    is_lynch = causes == [LYNCH.name]
    night = None if is_lynch else nights.get(event.day - 1)
    attacks = [] if night is None else night.fatal.get(names.index(name), [])
    shown = event.data["role"]
    return {
        "day": event.day if is_lynch else event.day - 1,
        "at": "day" if is_lynch else "night",
        "player": name,
        "role": ROLES[lives.role_at(name, moment).id].name,
        "role_shown": None if shown == UNKNOWN_ROLE else shown,
        "causes": causes,
        "killers": [*dict.fromkeys(names[attack.attacker] for attack in attacks)],
    }
