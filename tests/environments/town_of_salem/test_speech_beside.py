"""Words said together with a vote, a ballot or a day ability: one reply, heard before the act takes effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mac_runner.environments.town_of_salem.testing import (
    POLICIES,
    Act,
    Asking,
    Beside,
    Cause,
    Chosen,
    Event,
    EventKind,
    Game,
    IllegalActError,
    Options,
    Phase,
    Problem,
    apply,
    read,
)
from mac_runner.types import JsonObject, Prompt, Reply, Turn
from tests.environments.town_of_salem.table import ELEVEN, Table, open_game, play

FIVE = ("sheriff", "doctor", "jailor", "escort", "godfather")
BESIDE = "<speak>Elias is suspicious.</speak>"


def game_in(phase: Phase, *, votes: str = "<wait/>", options: Options | None = None) -> Game:
    """A game of five in the first round of a phase of day 2; in the voting all answer `votes`."""
    game = open_game(FIVE, options=options)
    while game.state.phase is not phase or game.state.day < 2:
        is_voting = game.state.phase is Phase.VOTING
        game.receive(game.turns()[0], Reply(text=votes if is_voting else "<wait/>"))
    return game


def kinds(events: list[Event]) -> list[EventKind]:
    return [event.kind for event in events]


def test_words_with_the_vote_that_opens_a_trial_are_heard_before_it() -> None:
    game = game_in(Phase.VOTING)
    game.receive(game.turns()[0], Reply(text="<wait/>"))
    before = len(game.log.events)
    while game.state.phase is Phase.VOTING:
        turn = game.turns()[0]
        target = "Abel" if turn.agent == "Elias" else "Elias"
        game.receive(turn, Reply(text=f"{BESIDE}<vote>{target}</vote>"))
    found = kinds(game.log.events[before:])
    acts = game.record()["acts"]
    claims = game.record()["claims"]

    assert found[-3:] == [EventKind.SPEECH, EventKind.VOTE, EventKind.TRIAL]
    assert found.count(EventKind.SPEECH) == found.count(EventKind.VOTE)
    assert isinstance(acts, list)
    assert [act["act"] for act in acts if isinstance(act, dict)][-2:] == ["speak", "vote"]
    assert isinstance(claims, list)
    assert len(claims) == found.count(EventKind.SPEECH), "the record judges what was said with a vote"


def test_words_with_a_ballot_are_heard_when_all_have_judged_and_before_the_ballots_are_shown() -> None:
    game = game_in(Phase.JUDGEMENT, votes="<vote>Elias</vote>")
    judges = game.turns()
    first = [game.prompt(turn).sha256 for turn in judges]
    events = len(game.log.events)
    for turn in judges[:-1]:
        game.receive(turn, Reply(text=f"<ballot>innocent</ballot><speak>{turn.agent} has doubts.</speak>"))

    assert len(game.log.events) == events
    assert game.prompt(game.turns()[0]).sha256 == first[-1]
    game.receive(game.turns()[0], Reply(text='{"act": "ballot", "choice": "guilty", "speak": "I have none."}'))
    shown = kinds(game.log.events[events:])
    assert shown[: len(judges) + 1] == [EventKind.SPEECH] * len(judges) + [EventKind.BALLOTS]


def test_words_with_a_day_ability_use_up_no_turn_of_their_own() -> None:
    game = game_in(Phase.DISCUSSION)
    while (turn := game.turns()[0]).agent != "Caleb":
        game.receive(turn, Reply(text="<wait/>"))
    events = len(game.log.events)
    game.receive(turn, Reply(text="<speak>Somebody will talk tonight.</speak><jail>Elias</jail>"))

    assert kinds(game.log.events[events:]) == [EventKind.SPEECH, EventKind.JAIL_CHOSEN]
    assert all(one.agent != "Caleb" or one.round > turn.round for one in game.turns())


def test_words_are_refused_where_their_player_may_not_speak() -> None:
    table = Table(FIVE)
    table.go_to(Phase.VOTING)
    mute = replace(table.state.players[0], is_blackmailed=True)
    blackmailed = table.state.with_player(mute)
    reading = read(Reply(text=f"{BESIDE}<vote>Elias</vote>"), blackmailed, 0)
    assert isinstance(reading, Problem)
    assert "be added now" in reading.reason

    table.go_to(Phase.NIGHT)
    for text in (f"{BESIDE}<interrogate>Elias</interrogate>", f"{BESIDE}<whisper to='Elias'>x</whisper>"):
        reading = read(Reply(text=text), table.state, 0)
        assert isinstance(reading, Problem)
        assert reading.cause is Cause.SEVERAL_ACTS
    with pytest.raises(IllegalActError):
        apply(table.state, Beside(Act(seat=0, verb="speak", text="hello")))
    with pytest.raises(IllegalActError):
        apply(blackmailed, Beside(Act(seat=0, verb="speak", text="hello")))


def test_who_speaks_and_waits_speaks() -> None:
    table = Table(FIVE)
    table.go_to(Phase.DISCUSSION)

    reading = read(Reply(text="<speak>hello</speak><wait/>"), table.state, 0)
    assert reading == Chosen(act=Act(seat=0, verb="speak", text="hello"))


def test_first_edition_takes_no_words_with_an_act() -> None:
    table = Table(FIVE, options=Options(edition=1))
    table.go_to(Phase.VOTING)
    for text in (f"{BESIDE}<vote>Elias</vote>", '{"act": "vote", "target": "Elias", "speak": "hello"}'):
        assert isinstance(read(Reply(text=text), table.state, 0), Problem)


def test_schema_has_a_field_for_words_exactly_with_the_acts_that_take_them() -> None:
    found: dict[tuple[str, str], set[bool]] = {}

    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        variants = (prompt.schema or {}).get("anyOf")
        assert isinstance(variants, list)
        for variant in variants:
            assert isinstance(variant, dict)
            act = _part(_part(variant, "properties"), "act").get("const")
            has_words = "speak" in _part(variant, "properties")
            found.setdefault((str(act), game.state.phase), set()).add(has_words)

    game = open_game(ELEVEN, options=Options(max_days=6), asking=Asking(form="json"))
    play(game, POLICIES["heuristic"], watch=watch)
    taken = {place for place, given in found.items() if given == {True}}
    assert taken >= {("vote", "voting"), ("ballot", "judgement"), ("jail", "discussion"), ("jail", "greeting")}
    assert {act for act, _ in taken} <= {"vote", "unvote", "ballot", "jail", "reveal", "seance", "caution"}


def _part(value: JsonObject, key: str) -> JsonObject:
    part = value.get(key)
    return part if isinstance(part, dict) else {}
