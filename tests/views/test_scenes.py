"""What scenes say that an event showed is in the words of that event, so that a perspective can go by it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from mac_runner.types import JsonObject
from mac_runner.view_model import ConversationView
from mac_runner.views.testing import whole_view
from tests.environments.discussion.table import everything
from tests.views.playing import experiment, transcripts


def games() -> Iterator[JsonObject]:
    """Games with jails, seances and other talk of authors without a name."""
    for lobby in ("ranked-15", "social-10", "classic-10"):
        one = experiment("experiments/tos_100games.yaml", f"game.lobby={lobby}", "game.calendar.max_days=3")
        for policy in ("heuristic", "random"):
            yield from transcripts(one, policy)
    yield from transcripts(everything(), "clumsy", count=3)


def shown(view: ConversationView) -> Iterator[tuple[str, int, str]]:
    """Every text that an event showed, with what is named beside it."""
    for member in view.members:
        for fact in member.facts:
            if fact.event is not None:
                yield f"{member.name} {fact.text}", fact.event, fact.name
    for fact in view.facts:
        if fact.event is not None:
            yield fact.text, fact.event, fact.name
    for phase in view.phases:
        for mark in phase.marks:
            if mark.event is not None:
                yield mark.text, mark.event, mark.symbol
    for table in view.tables:
        # A seat gets heads without their titles.
        heads = [(head.text, head.event) for head in (*table.heads, *(row.head for row in table.rows))]
        cells = [(f"{cell.text} {cell.title}", cell.event) for row in table.rows for cell in row.cells]
        yield from ((text, event, table.name) for text, event in (*heads, *cells) if event is not None)


@pytest.mark.ci
def test_a_scene_names_no_agent_that_its_event_does_not_name() -> None:
    found: set[tuple[str, ...]] = set()
    count = 0
    for transcript in games():
        view = whole_view(transcript)
        name = re.compile(rf"\b({'|'.join(map(re.escape, view.seats))})\b")
        for text, place, where in shown(view):
            event = view.events[place]
            # What one alone learned may be about itself: "You are the Doctor."
            known = {*name.findall(event.text), *(event.audience or () if len(event.audience or ()) == 1 else ())}
            found |= {(where, each, text, event.text[:120]) for each in name.findall(text) if each not in known}
            count += 1

    assert count > 500
    assert sorted(found) == []
