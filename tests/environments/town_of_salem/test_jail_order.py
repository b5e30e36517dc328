"""The jail: its keeper speaks first in each round of the night and the prisoner answers; all others talk at once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import Death, EventKind, Game, Options, Phase, Seance, SeatView
from mac_runner.types import Reply, Turn
from tests.environments.town_of_salem.table import make_task, open_game, play

# The prisoner sits before the keeper, so that seat order alone would let the prisoner speak first.
ROLES = ("sheriff", "doctor", "escort", "jailor", "godfather", "framer", "mafioso")
ORDERS = 12


def night(*, edition: int = 2, roles: tuple[str, ...] = ROLES) -> Game:
    """A game in its first night chat, with Abel in jail."""
    game = open_game(roles, options=Options(edition=edition))
    while game.state.phase is not Phase.NIGHT_CHAT:
        turn = game.turns()[0]
        game.receive(turn, Reply(text="<jail>Abel</jail>" if turn.agent == "Dorothea" else "<wait/>"))
    return game


def turn_of(game: Game, name: str) -> Turn:
    return next(turn for turn in game.turns() if turn.agent == name)


def test_prisoner_answers_what_the_keeper_says_in_the_same_round() -> None:
    game = night()
    assert turn_of(game, "Abel").after == {"Dorothea"}
    assert turn_of(game, "Abel").place > turn_of(game, "Dorothea").place
    assert all(not turn.after for turn in game.turns() if turn.agent != "Abel")

    before = game.prompt(turn_of(game, "Elias")).sha256
    game.receive(turn_of(game, "Dorothea"), Reply(text="<speak>Who are you?</speak>"))
    prompt = game.prompt(turn_of(game, "Abel"))
    assert not turn_of(game, "Abel").after
    assert "“Who are you?”" in prompt.messages[1].content
    assert "Dorothea" not in prompt.messages[1].content.rpartition("KNOWN TO YOU")[2].partition("NOW")[0]
    assert game.prompt(turn_of(game, "Elias")).sha256 == before, "no other seat learns of it"


def test_keeper_who_does_not_speak_lets_the_prisoner_speak() -> None:
    game = night()
    game.receive(turn_of(game, "Dorothea"), Reply(text="<wait/>"))

    assert not turn_of(game, "Abel").after
    game.receive(turn_of(game, "Abel"), Reply(text="<speak>I am the Sheriff.</speak>"))
    assert {turn.agent for turn in game.turns()} == {"Elias", "Felicity", "Gideon"}


def test_keeper_who_speaks_elsewhere_is_heard_there_when_all_are() -> None:
    """A dead Medium talks with the Jailor: what is said to the dead must not depend on who answers first."""
    game = night(roles=(*ROLES, "medium"))
    dead = replace(game.state.players[7], death=Death(day=1, at_night=False, causes=("lynch",)))
    haunted = replace(game.state.with_player(dead), seance=Seance(medium=7, target=3), order=(*game.state.order, 7))
    game = Game(task=make_task((*ROLES, "medium")), state=haunted, opening=(), max_retries=0)
    before, events = game.prompt(turn_of(game, "Hester")).sha256, len(game.log.events)
    game.receive(turn_of(game, "Dorothea"), Reply(text='<speak channel="seance">Who killed you?</speak>'))

    assert len(game.log.events) == events
    assert game.prompt(turn_of(game, "Hester")).sha256 == before
    assert not turn_of(game, "Abel").after


@pytest.mark.ci
def test_state_is_the_same_whatever_the_order_of_arrival() -> None:
    """All talk every night; the keeper names his channel, says nothing, or just talks."""

    def talkative(view: object, chance: Random) -> str:
        assert isinstance(view, SeatView)
        verbs = {choice.verb for choice in view.choices}
        if "jail" in verbs and chance.random() < 0.9:
            return f"<jail>{chance.choice(next(c.targets for c in view.choices if c.verb == 'jail'))}</jail>"
        if view.phase is Phase.NIGHT_CHAT and chance.random() < 0.8:
            channel = chance.choice(["", *next(c.choices for c in view.choices if c.verb == "speak")])
            attribute = f' channel="{channel}"' if channel else ""
            return f"<speak{attribute}>{view.name} {chance.randrange(100)}</speak>"
        return "<wait/>"

    def whole(order: Random | None) -> tuple[str, list[object]]:
        game = open_game(ROLES, options=Options(max_days=5))
        play(game, talkative, order=order)
        events = [(event.kind, dict(event.data)) for event in game.log.events]
        return game.fingerprint(), list(events)

    fixed = whole(None)
    kinds = [event[0] for event in fixed[1] if isinstance(event, tuple)]
    assert kinds.count(EventKind.JAILED) > 2
    assert all(whole(Random(number)) == fixed for number in range(ORDERS))


def test_first_edition_asks_both_at_once() -> None:
    game = night(edition=1)

    assert all(not turn.after for turn in game.turns())
    events = len(game.log.events)
    game.receive(turn_of(game, "Dorothea"), Reply(text="<speak>Who are you?</speak>"))
    assert len(game.log.events) == events
