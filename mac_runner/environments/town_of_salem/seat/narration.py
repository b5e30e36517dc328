"""Events in words, one line each.

What players wrote is defused, so that it can pass for nothing but their words.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mac_runner.environments.markup import defuse
from mac_runner.environments.town_of_salem.model.events import UNKNOWN_ROLE, Event, Notice, visitors_in, with_article
from mac_runner.environments.town_of_salem.model.state import LYNCH, Phase
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.roles.catalogue import follows_roles
from mac_runner.environments.town_of_salem.seat.texts import EVENT_WORDS


@follows_roles
@cache
def _causes() -> Mapping[str, str]:
    """How the announcement of a death puts each cause."""
    return {cause.name: cause.line for cause in (LYNCH, *(cause for role in ROLES.values() for cause in role.causes))}


def stamp(event: Event) -> str:
    """When the event happened: `Day 2, voting`, `Night 3`."""
    return moment(event.day, event.phase)


def moment(day: int, phase: Phase) -> str:
    """A day and its phase in words."""
    if phase.is_night:
        return f"Night {day}"
    return f"Day {day}" if phase is Phase.OVER else f"Day {day}, {phase}"


def line(event: Event, before: str = "") -> str:
    """The event as a line of the record, under a heading of its own where `before`, the last stamp, is another."""
    now = stamp(event)
    return sentence(event) if now == before else f"[{now}]\n{sentence(event)}"


def without_heading(line: str) -> str:
    """The sentence of a line of the record."""
    return line.rpartition("\n")[2]


def sentence(event: Event) -> str:
    """The event in words."""
    words = event.kind.words if isinstance(event.kind, Notice) else EVENT_WORDS[event.kind]
    return words.format_map(_Fields(event))


class _Fields(dict[str, str]):
    """The data of an event as its sentence wants it: lists joined, players' own words defused."""

    def __init__(self, event: Event) -> None:
        data = event.data
        super().__init__({key: _words(value) for key, value in data.items()})
        self["count_of"] = f"{data.get('count')} of {data.get('needed')}"
        if "verb" in data:
            verb = str(data["verb"]).replace("_", " ")
            self["action"] = f"{verb}: {self['targets']}" if data["targets"] else verb
        if data.get("role"):
            self["a_role"] = with_article(str(data["role"]))
        if "legacy" in data:
            self["legacy"] = f"The will read: “{self['legacy']}”" if data["legacy"] else "There was no will."
        if "target" in data:
            self["attacked"] = self["target"] or "Someone you met"
        if "finding" in data:
            # The visits of a night are over; a role is held on.
            self["found"] = f"{'is' if visitors_in(self['finding']) is None else 'was'} {self['finding']}"
        if "causes" in data:
            self["death"] = _death(event)
        if "is_guilty" in data:
            self["verdict"] = "guilty and will be lynched" if data["is_guilty"] else "acquitted"
        if "ending" in data:
            self["end"] = _ending(event)


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value) or "no one"
    if isinstance(value, dict):
        return ", ".join(f"{name} ({role})" for name, role in value.items())
    return defuse(str(value))


def _death(event: Event) -> str:
    data = event.data
    how = " and ".join(_causes()[cause] for cause in event.names("causes"))
    will = f"The will reads: “{defuse(event.text('will'))}”" if data["will"] else "There was no will."
    if data.get("is_bloody"):
        will = "The will is soaked in blood and cannot be read."
    left = "".join(f" A note was left: “{defuse(note)}”" for note in event.names("death_notes"))
    if data["role"] == UNKNOWN_ROLE:
        return f"{data['player']} died, {how}. The body was cleaned: neither role nor will is known."
    return f"{data['player']} died, {how}. They were {with_article(str(data['role']))}. {will}{left}"


def _ending(event: Event) -> str:
    winners = " and ".join(f"the {winner.title()}" for winner in event.names("winners"))
    reason = event.data["reason"]
    match event.data["ending"]:
        case "win":
            return f"The game is over: {winners} won, because {reason}."
        case "draw":
            return f"The game is over: a draw, because {reason}."
        case _:
            return f"The game was stopped: {reason}."
