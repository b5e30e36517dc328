"""The modes of taking turns in a discussion: who is asked when, on which view, and what becomes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from random import Random
from typing import get_args

import pytest

from mac_runner.environments.testing import replay
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    POLICIES,
    DiscussionMode,
    EventKind,
    Game,
    GameCalendar,
    Options,
    Phase,
    deal,
    offers,
    system_text,
    turn_taking_rule,
    validate,
)
from mac_runner.types import Prompt, Reply, Turn, TurnRecord
from tests.environments.town_of_salem.table import ELEVEN, Table, clumsy, open_game, play, recorded
from tests.tiers import first

MODES = list(DiscussionMode)
TALK = (Phase.BIDDING, Phase.DISCUSSION)
FIVE = ("sheriff", "doctor", "investigator", "escort", "godfather")


def options(mode: DiscussionMode, *, floors: int = 6, slots: int = 3, max_days: int = 4) -> Options:
    return Options(discussion_mode=mode, discussion_floors=floors, speaking_slots=slots, max_days=max_days)


def at_discussion(mode: DiscussionMode, *, floors: int = 6) -> Table:
    table = Table(FIVE, options=options(mode, floors=floors))
    table.go_to(Phase.BIDDING if mode is DiscussionMode.BIDDING else Phase.DISCUSSION)
    return table


def game_at_discussion(mode: DiscussionMode, *, rounds: int = 2, roles: Sequence[str] = FIVE) -> Game:
    """A game whose first discussion has just begun."""
    game = open_game(roles, options=replace(options(mode), discussion_rounds=rounds))
    while game.state.phase not in TALK:
        game.receive(game.turns()[0], Reply(text="<wait/>"))
    return game


def test_modes_of_the_file_are_those_of_the_rules() -> None:
    allowed = get_args(GameCalendar.model_fields["discussion_mode"].annotation)

    assert [*allowed] == [mode.value for mode in MODES]


@pytest.mark.parametrize("mode", MODES)
def test_players_are_told_how_turns_are_taken(mode: DiscussionMode) -> None:
    rule = turn_taking_rule(options(mode))
    text = system_text(FIVE, options(mode))

    assert rule in text
    assert bool(rule) == (mode is not DiscussionMode.RANDOM)
    assert (ACTS["bid"].help in text) == (mode is DiscussionMode.BIDDING)


def test_random_mode_draws_an_order_for_each_round() -> None:
    table = at_discussion(DiscussionMode.RANDOM)
    orders = set()
    for _ in range(2):
        orders.add(table.state.order)
        table.end_round()

    assert len(orders) == 2


def test_seat_order_mode_asks_in_seat_order_in_every_talk_of_the_day() -> None:
    table = Table(FIVE, options=options(DiscussionMode.SEAT_ORDER))
    while table.state.day < 3:
        if not table.state.phase.is_night:
            assert table.state.order == tuple(sorted(table.state.order))
        table.end_round()


def test_seat_order_mode_respects_who_speaks_after_whom() -> None:
    table = Table(FIVE, options=options(DiscussionMode.SEAT_ORDER), speak_after={0: frozenset({3})})

    assert table.state.order == (1, 2, 3, 0, 4)


def test_simultaneous_mode_shows_nobody_the_words_of_the_same_round() -> None:
    game = game_at_discussion(DiscussionMode.SIMULTANEOUS)
    turns = game.turns()
    assert len(turns) == 5
    assert all(not turn.after for turn in turns)
    before = [game.prompt(turn).sha256 for turn in turns]
    for turn in reversed(turns[1:]):
        game.receive(turn, Reply(text=f"<speak>{turn.agent} was here</speak>"))

    assert game.prompt(turns[0]).sha256 == before[0]
    game.receive(turns[0], Reply(text="<speak>and I</speak>"))
    said = [event.data["player"] for event in game.log.public if event.kind is EventKind.SPEECH]
    assert said == [player.name for player in game.state.players]
    assert game.prompt(game.turns()[0]).messages[1].content.count("was here”") == 4


def test_act_that_others_made_impossible_lapses_into_waiting() -> None:
    """A Mayor who reveals cannot be whispered to any more: the whisper was chosen before, and comes after."""
    game = game_at_discussion(DiscussionMode.SIMULTANEOUS, rounds=1, roles=("mayor", *FIVE))
    mayor, *others = game.turns()
    for turn in (*others, mayor):
        is_mayor = turn is mayor
        receipt = game.receive(
            turn, Reply(text="<reveal/>" if is_mayor else f'<whisper to="{mayor.agent}">psst</whisper>')
        )
        assert receipt.kind == "act"
    acts = game.record()["acts"]
    assert isinstance(acts, list)
    of_day = [act for act in acts if isinstance(act, dict) and act["day"] == 2]

    assert of_day[0]["act"] == "reveal"
    assert [act["act"] for act in of_day[1:]] == ["whisper", "wait"] * 5
    assert [act.get("is_lapsed", False) for act in of_day[1:]] == [True, False] * 5
    assert [act["is_default"] for act in of_day[1:]] == [False, True] * 5
    assert all(event.kind is not EventKind.WHISPER for event in game.log.events)
    assert game.state.phase is Phase.VOTING


def test_bids_are_made_at_once_and_shown_to_nobody() -> None:
    game = game_at_discussion(DiscussionMode.BIDDING)
    first, second, *_ = game.turns()
    before = game.prompt(second).sha256
    assert "<bid>" in game.prompt(second).messages[1].content
    game.receive(first, Reply(text="<bid>3</bid>"))
    assert game.prompt(second).sha256 == before
    for turn in game.turns():
        game.receive(turn, Reply(text="<bid>1</bid>"))

    (floor,) = game.turns()
    assert (floor.agent, game.state.phase) == (first.agent, Phase.DISCUSSION)
    assert all(event.kind is not EventKind.SPEECH for event in game.log.public if event.day == 2)
    assert game.prompt(floor).sha256 != before


@pytest.mark.parametrize("bid", ["5", "-1", "", "two", "1.5"])
def test_bid_out_of_range_is_corrected(bid: str) -> None:
    game = game_at_discussion(DiscussionMode.BIDDING)

    assert game.receive(game.turns()[0], Reply(text=f"<bid>{bid}</bid>")).kind == "correction"


def test_highest_bidder_alone_speaks_and_then_all_bid_again() -> None:
    table = at_discussion(DiscussionMode.BIDDING)
    for seat, bid in enumerate("01431"):
        table.act(seat, "bid", choice=bid)
    table.end_round()
    assert (table.state.phase, table.state.order, table.state.round_in_phase) == (Phase.DISCUSSION, (2,), 1)
    table.act(2, "speak", text="words")
    table.end_round()

    assert (table.state.phase, table.state.order) == (Phase.BIDDING, (0, 1, 2, 3, 4))
    assert (table.state.bids, table.state.round_in_phase) == ({}, 2)


def test_equal_bids_go_to_whom_the_last_words_named() -> None:
    for named in (0, 3, 4):
        table = at_discussion(DiscussionMode.BIDDING)
        table.act(2, "bid", choice="1")
        table.end_round()
        table.act(2, "speak", text=f"What do you say, {table.name(named).upper()}?")
        table.end_round()
        for seat in (0, 1, 3, 4):
            table.act(seat, "bid", choice="2")
        table.end_round()
        assert table.state.order == (named,)


def test_equal_bids_of_players_nobody_named_are_drawn() -> None:
    speakers = Counter[int]()
    for seed in range(60):
        table = Table(FIVE, seed=seed, options=options(DiscussionMode.BIDDING))
        table.go_to(Phase.BIDDING)
        for seat in range(4):
            table.act(seat, "bid", choice="4")
        table.end_round()
        speakers.update(table.state.order)

    assert set(speakers) == {0, 1, 2, 3}


def test_talk_is_over_when_nobody_wants_the_floor() -> None:
    table = at_discussion(DiscussionMode.BIDDING)
    table.act(1, "bid", choice="0")
    table.end_round()

    assert table.is_in(Phase.VOTING)


def test_floors_of_a_day_are_limited() -> None:
    table = at_discussion(DiscussionMode.BIDDING, floors=3)
    floors = 0
    while table.state.phase in TALK:
        if table.is_in(Phase.BIDDING):
            table.act(0, "bid", choice="4")
        else:
            floors += 1
        table.end_round()

    assert floors == 3
    assert table.is_in(Phase.VOTING)


def test_day_ability_may_be_used_in_place_of_a_bid() -> None:
    table = Table(("jailor", *FIVE), options=options(DiscussionMode.BIDDING))
    table.go_to(Phase.BIDDING)
    table.act("jailor", "jail", "sheriff")
    table.act("doctor", "bid", choice="1")
    table.end_round()

    assert table.state.jail_choice == table.seat("sheriff")
    assert table.state.order == (table.seat("doctor"),)


def test_dead_medium_is_asked_for_the_seance_before_the_first_floor_and_cannot_bid() -> None:
    game = open_game(("medium", *FIVE), options=options(DiscussionMode.BIDDING))
    while game.state.phase is not Phase.BIDDING:
        kills = game.state.phase is Phase.NIGHT and game.turns()[0].agent == game.state.players[5].name
        text = f"<kill>{game.state.players[0].name}</kill>" if kills else "<wait/>"
        game.receive(game.turns()[0], Reply(text=text))
    assert not game.state.players[0].alive
    asked = next(turn for turn in game.turns() if turn.agent == game.state.players[0].name)
    text = game.prompt(asked).messages[1].content.partition("Choose one act:")[2]

    assert "<seance>" in text
    assert "<bid>" not in text


def test_blackmailed_player_cannot_bid_for_a_floor_they_could_not_use() -> None:
    table = at_discussion(DiscussionMode.BIDDING)
    assert offers(table.state, 1)[0].verb == "bid"
    table.state = table.state.with_player(replace(table.player(1), is_blackmailed=True))

    assert "bid" not in {offer.verb for offer in offers(table.state, 1)}


@pytest.mark.ci
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mode", MODES)
def test_scripted_players_play_every_mode_without_a_correction(mode: DiscussionMode, policy: str) -> None:
    game = open_game(ELEVEN, options=options(mode))
    kinds = Counter(record.receipt.kind for record in play(game, POLICIES[policy]))

    assert game.outcome is not None
    assert set(kinds) <= {"act", "observation"}
    has_spoken = any(event.kind is EventKind.SPEECH and event.day > 1 for event in game.log.public)
    assert has_spoken is (policy != "silent")


@pytest.mark.parametrize("seed", first(1, range(2), tier="ci", rest="nightly"))
@pytest.mark.parametrize("mode", MODES)
def test_any_roles_can_be_played_in_any_mode_and_the_order_of_replies_leaves_no_trace(
    mode: DiscussionMode, seed: int
) -> None:
    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        validate(game.state)

    roles = deal(("any",) * 15, seed)
    straight, shuffled = (open_game(roles, seed=seed, options=options(mode)) for _ in range(2))
    records = play(straight, clumsy, seed=seed, watch=watch)
    others = play(shuffled, clumsy, seed=seed, order=Random(seed))

    assert shuffled.fingerprint() == straight.fingerprint()
    assert shuffled.record() == straight.record()
    assert shuffled.outcome == straight.outcome
    key = [record.turn.canonical for record in records]
    assert sorted(others, key=lambda record: record.turn.canonical) == sorted(
        records, key=lambda record: record.turn.canonical
    )
    assert len(set(key)) == len(key)


@cache
def played_in(mode: DiscussionMode) -> tuple[Game, list[TurnRecord]]:
    """A game that has ended, and its replies."""
    game = open_game(ELEVEN, seed=5, options=options(mode))
    return game, play(game, clumsy, seed=5, order=Random(5))


@pytest.mark.parametrize("mode", MODES)
def test_game_of_any_mode_replays_in_canonical_order_with_every_prompt(mode: DiscussionMode) -> None:
    played, records = played_in(mode)
    rebuilt = open_game(ELEVEN, seed=5, options=options(mode))
    replies = recorded(sorted(records, key=lambda record: record.turn.canonical))

    assert replay(rebuilt, replies, check_prompts=True).changed_prompts == ()
    assert rebuilt.fingerprint() == played.fingerprint()


@pytest.mark.parametrize("share", first(2, (0.15, 0.41, 0.4, 0.75), tier="ci", rest="nightly"))
@pytest.mark.parametrize("mode", MODES)
def test_game_of_any_mode_goes_on_from_any_recorded_turn(mode: DiscussionMode, share: float) -> None:
    played, records = played_in(mode)
    resumed = open_game(ELEVEN, seed=5, options=options(mode))
    replay(resumed, recorded(records[: int(len(records) * share)]))
    play(resumed, clumsy, seed=5, order=Random(3))

    assert resumed.fingerprint() == played.fingerprint()
