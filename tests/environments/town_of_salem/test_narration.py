"""Events in words: what a night made of a player reads as a sentence."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.game.events import EventKind
from mac_runner.environments.town_of_salem.game.state import Phase
from mac_runner.environments.town_of_salem.view.narration import sentence
from tests.environments.town_of_salem.table import Table

CROWD = ("sheriff", "doctor", "lookout", "consigliere", "mafioso")


def told(who: str, verb: str, whom: str) -> list[str]:
    """What a player is told of a night in which they do this."""
    table = Table(CROWD)
    table.go_to(Phase.NIGHT)
    before = len(table.events)
    table.night({who: (verb, whom)})
    seat, name = table.seat(who), table.name(whom)
    heard = (event for event in table.events[before:] if event.audience is not None and seat in event.audience)
    return [sentence(event).replace(name, "Abel") for event in heard if event.kind is not EventKind.TEAM]


def test_findings_say_what_somebody_is_and_who_was_there() -> None:
    assert told("sheriff", "interrogate", "mafioso")[-1] == "You found that Abel is suspicious."
    assert told("lookout", "watch", "doctor")[-1] == "You found that Abel was visited by nobody."


def test_deeds_are_told_in_words_and_not_in_identifiers() -> None:
    assert told("consigliere", "look_into", "doctor")[0] == "You chose to look into: Abel."
