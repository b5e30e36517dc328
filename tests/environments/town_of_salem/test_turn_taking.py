"""The modes of taking turns in a discussion: who is asked when, on which view, and what becomes of it.

Information lag is first in, first out, on a clock that depends on nothing but the replies. `nights.yaml` has the bids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import permutations
from random import Random
from typing import Any, get_args

import pytest

from mac_runner.environments.testing import replay
from mac_runner.environments.town_of_salem.testing import (
    ACTS,
    POLICIES,
    DiscussionMode,
    Due,
    EventKind,
    Game,
    GameLatency,
    Options,
    Phase,
    Prompts,
    SpeakingQueue,
    deal,
    turn_taking_rule,
    validate,
)
from mac_runner.types import Prompt, Receipt, Reply, TokenCount, Turn, TurnRecord
from tests.environments.town_of_salem.table import (
    ELEVEN,
    Table,
    advance,
    answer,
    clumsy,
    open_game,
    play,
    recorded,
    rows,
    told_now,
)
from tests.tiers import first

MODES: tuple[DiscussionMode, ...] = get_args(DiscussionMode)
FIVE = ("sheriff", "doctor", "investigator", "escort", "godfather")


def options(mode: DiscussionMode, *, rounds: int = 2, max_days: int = 4) -> Options:
    return Options(discussion_mode=mode, discussion_rounds=rounds, speaking_slots=3, max_days=max_days)


def talk_of(mode: DiscussionMode) -> Phase:
    """With what the talk of a day begins."""
    return Phase.BIDDING if mode == "bidding" else Phase.DISCUSSION


def at_discussion(mode: DiscussionMode, *, seed: int = 1) -> Table:
    table = Table(FIVE, options=options(mode), seed=seed)
    table.go_to(talk_of(mode))
    return table


def game_at_discussion(mode: DiscussionMode, *, rounds: int = 2, roles: Sequence[str] = FIVE) -> Game:
    """A game whose first discussion has just begun."""
    return advance(open_game(roles, options=options(mode, rounds=rounds)), talk_of(mode))


def test_players_are_told_how_turns_are_taken() -> None:
    for mode in MODES:
        rule, text = turn_taking_rule(options(mode)), Prompts().system(FIVE, options(mode))
        assert rule in text
        assert bool(rule) == (mode != "random")
        assert (ACTS["bid"].help in text) == (mode == "bidding")


def test_seat_order_mode_asks_in_seat_order_in_every_talk_of_the_day() -> None:
    """`test_nights.py` sees that the random mode draws an order for each round."""
    table = Table(FIVE, options=options("seat_order"))
    while table.state.day < 3:
        if not table.state.phase.is_night:
            assert table.state.order == tuple(sorted(table.state.order))
        table.end_round()
    gated = Table(FIVE, options=options("seat_order"), speak_after={0: frozenset({3})})
    assert gated.state.order == (1, 2, 3, 0, 4)


def test_simultaneous_mode_shows_nobody_the_words_of_the_same_round() -> None:
    game = game_at_discussion("simultaneous")
    turns = game.turns()
    assert len(turns) == 5
    assert all(not turn.after for turn in turns)
    before = [game.prompt(turn).sha256 for turn in turns]
    for turn in reversed(turns[1:]):
        game.receive(turn, Reply(text=f"<speak>{turn.agent} was here</speak>"))

    assert game.prompt(turns[0]).sha256 == before[0]
    answer(game, "<speak>and I</speak>")
    said = [event.data["player"] for event in game.log.public if event.kind is EventKind.SPEECH]
    assert said == [player.name for player in game.state.players]
    assert told_now(game).count("was here”") == 4


def test_act_that_others_made_impossible_lapses_into_waiting() -> None:
    """A Mayor who reveals cannot be whispered to any more: the whisper was chosen before, and comes after."""
    game = game_at_discussion("simultaneous", rounds=1, roles=("mayor", *FIVE))
    mayor, *others = game.turns()
    for turn in (*others, mayor):
        text = "<reveal/>" if turn is mayor else f'<whisper to="{mayor.agent}">psst</whisper>'
        assert game.receive(turn, Reply(text=text)).kind == "act"
    of_day = [act for act in rows(game, "acts") if act["day"] == 2]

    assert of_day[0]["act"] == "reveal"
    assert [act["act"] for act in of_day[1:]] == ["whisper", "wait"] * 5
    assert [act.get("is_lapsed", False) for act in of_day[1:]] == [True, False] * 5
    assert [act["is_default"] for act in of_day[1:]] == [False, True] * 5
    assert all(event.kind is not EventKind.WHISPER for event in game.log.events)
    assert game.state.phase is Phase.VOTING


def test_bids_are_made_at_once_shown_to_nobody_and_corrected_out_of_range() -> None:
    game = game_at_discussion("bidding")
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
    for bid in ("5", "-1", "", "two", "1.5"):
        assert answer(game_at_discussion("bidding"), f"<bid>{bid}</bid>").kind == "correction", bid


def test_equal_bids_go_to_whom_the_last_words_named() -> None:
    for named in (0, 3, 4):
        table = at_discussion("bidding")
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
        table = at_discussion("bidding", seed=seed)
        for seat in range(4):
            table.act(seat, "bid", choice="4")
        table.end_round()
        speakers.update(table.state.order)

    assert set(speakers) == {0, 1, 2, 3}


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
    in_order = sorted(records, key=lambda record: record.turn.canonical)
    replayed = replay(rebuilt, recorded(in_order), check_prompts=True)

    assert replayed.changed_prompts == ()
    assert [*replayed.records] == in_order
    assert rebuilt.fingerprint() == played.fingerprint()
    assert (rebuilt.record(), rebuilt.outcome) == (played.record(), played.outcome)


@pytest.mark.parametrize("share", first(2, (0.15, 0.41, 0.4, 0.75), tier="ci", rest="nightly"))
@pytest.mark.parametrize("mode", MODES)
def test_game_of_any_mode_goes_on_from_any_recorded_turn(mode: DiscussionMode, share: float) -> None:
    played, records = played_in(mode)
    resumed = open_game(ELEVEN, seed=5, options=options(mode))
    replay(resumed, recorded(records[: int(len(records) * share)]))
    play(resumed, clumsy, seed=5, order=Random(3))

    assert resumed.fingerprint() == played.fingerprint()


# Information lag.

SECONDS = GameLatency(prefill_ms=0, kernel_ms=1000, quantum=1, tool_ms=500)
"""A token a second, so that the tokens of a reply are its seconds."""

RUNTIMES_S = {"Abel": [4, 3], "Beatrice": [8, 6], "Caleb": [4, 2]}
WORDS = {
    ("Abel", 0): "I suggest we hang the quiet player.",
    ("Beatrice", 0): "Hold on: I am the doctor.",
    ("Caleb", 0): "Seconded: quiet is sus.",
    ("Abel", 1): "Fine. Beatrice, any proof? Caleb, why agree so fast?",
    ("Caleb", 1): "Quiet players are often evil. The claim of Beatrice is convenient.",
    ("Beatrice", 1): "My logs will prove it. Jailor can confirm I healed them.",
}
COMPLETED = [
    *((0, 4, "Abel", 0), (0, 8, "Beatrice", 0), (4, 8, "Caleb", 0)),
    *((8, 11, "Abel", 1), (11, 13, "Caleb", 1), (8, 14, "Beatrice", 1)),
]
"""Seconds of start and end, agent and turn: the timeline of three agents on two slots."""


def lagged_game(*, rounds: int = 2, slots: int = 2, latency: GameLatency = SECONDS) -> Game:
    """A game of three at the beginning of its first discussion."""
    lagged = Options(
        discussion_mode="information_lag",
        discussion_rounds=rounds,
        speaking_slots=slots,
        greeting_rounds=0,
    )
    return advance(open_game(("sheriff", "doctor", "godfather"), options=lagged, latency=latency), Phase.DISCUSSION)


def say(game: Game, turn: Turn, text: str, *, tokens: int) -> Receipt:
    return game.receive(turn, Reply(text=text, tokens=TokenCount(completion=tokens)))


def heard(game: Game, turn: Turn) -> set[tuple[str, int]]:
    """Which of WORDS the prompt of a turn shows."""
    text = told_now(game, turn.agent)
    return {key for key, words in WORDS.items() if f"{key[0]} says: “{words}”" in text}


def spoken(game: Game) -> list[Any]:
    return [act for act in rows(game, "acts") if act["phase"] == "discussion" and act["act"]]


@pytest.mark.parametrize("dice", range(6))
def test_three_agents_on_two_slots_speak_at_the_times_of_the_timeline_and_hear_what_was_said_by_then(
    dice: int,
) -> None:
    """The timeline of the information-lag model, whatever the order in which the replies really come in.

    Where a well-known table of it lists an agent both as queued and as active (the third at 4 s) or leaves the queue of
    13 s with agents that have started, the rules stand: who takes a slot leaves the queue.
    """
    game, chance = lagged_game(), Random(dice)
    seen: dict[tuple[str, int], set[tuple[str, int]]] = {}
    turn_of = dict.fromkeys(RUNTIMES_S, 0)
    queues: list[tuple[list[str], list[str]]] = []
    while game.state.phase is Phase.DISCUSSION:
        turn = chance.choice(game.turns())
        key = (turn.agent, turn_of[turn.agent])
        seen[key] = heard(game, turn)
        turn_of[turn.agent] += 1
        say(game, turn, f"<speak>{WORDS[key]}</speak>", tokens=RUNTIMES_S[turn.agent][key[1]])
        queue = game._game._queue
        if queue is not None:
            names = [*RUNTIMES_S]
            state = [names[seat] for seat in queue.waiting], [names[turn.seat] for turn in queue.active]
            queues += [state] if not queues or queues[-1] != state else []

    spans = [(act["simulated"], act["player"], act["text"]) for act in spoken(game)]
    assert spans == [
        ({"started_ms": 1000 * start, "ended_ms": 1000 * end}, agent, WORDS[agent, turn])
        for start, end, agent, turn in COMPLETED
    ]
    said = [(event.data["player"], event.data["text"]) for event in game.log.public if event.kind is EventKind.SPEECH]
    assert said == [(agent, WORDS[agent, turn]) for _, _, agent, turn in COMPLETED]
    firsts = {("Abel", 0), ("Beatrice", 0), ("Caleb", 0)}
    assert seen == {
        ("Abel", 0): set(),
        ("Beatrice", 0): set(),
        ("Caleb", 0): {("Abel", 0)},
        ("Abel", 1): firsts,
        # It started at 8 s, and Abel spoke at 11 s and Caleb at 13 s.
        ("Beatrice", 1): firsts,
        ("Caleb", 1): firsts | {("Abel", 1)},
    }
    assert queues == [
        (["Caleb"], ["Abel", "Beatrice"]),
        (["Abel"], ["Beatrice", "Caleb"]),
        (["Caleb"], ["Abel", "Beatrice"]),
        ([], ["Beatrice", "Caleb"]),
    ]


def test_each_turn_is_a_round_of_its_own_numbered_as_they_start() -> None:
    game = lagged_game()
    begun = game.state.round
    rounds = []
    while game.state.phase is Phase.DISCUSSION:
        turn = game.turns()[0]
        rounds.append(turn.round)
        assert game.rounds_completed <= turn.round
        say(game, turn, "<wait/>", tokens=1)

    assert rounds == list(range(begun, begun + 6))
    assert game.state.round == begun + 6
    assert {act["round"] for act in spoken(game)} == set(rounds)


def test_turn_takes_the_time_of_its_requests_and_its_tools() -> None:
    latency = GameLatency(prefill_ms=100, kernel_ms=10, quantum=16, tool_ms=7)
    game = lagged_game(rounds=1, slots=1, latency=latency)
    say(game, game.turns()[0], '<tool_request name="get_lobby"></tool_request>', tokens=16)
    say(game, game.turns()[0], "no act", tokens=17)
    say(game, game.turns()[0], "<wait/>", tokens=1)
    # An engine that does not count: 4 characters a token, so 33 tokens.
    answer(game, "<wait/>" + " " * 123)
    ends = [act["simulated"]["ended_ms"] for act in spoken(game)]

    assert ends == [340 + 7, 340 + 7 + 130]


def test_prompt_of_a_turn_shows_what_was_said_when_it_started_in_all_its_steps() -> None:
    game = lagged_game()
    quick, slow = game.turns()
    before = told_now(game, slow.agent)
    say(game, quick, "<speak>early words</speak>", tokens=1)
    say(game, slow, '<tool_request name="get_lobby"></tool_request>', tokens=9)
    (slow,) = game.turns()

    assert told_now(game) == before
    say(game, slow, "<wait/>", tokens=1)
    assert "early words" in told_now(game)


def test_player_is_told_which_of_its_own_turns_this_is() -> None:
    game = lagged_game(rounds=2, slots=3)
    for number in (1, 2):
        turns = game.turns()
        assert {told_now(game, turn.agent).count(f"round {number}.") for turn in turns} == {1}
        for turn in turns:
            say(game, turn, "<wait/>", tokens=1)


def run_queue(durations: Sequence[Sequence[int]], *, slots: int, chance: Random) -> list[Due]:
    """Answer the turns of a queue in a drawn order."""
    turns = {seat: len(of_seat) for seat, of_seat in enumerate(durations)}
    queue = SpeakingQueue.begin(range(len(durations)), turns, slots=slots)
    completed: list[Due] = []
    answered = dict.fromkeys(turns, 0)
    while unanswered := queue.unanswered():
        assert len(queue.active) <= slots
        turn = chance.choice(unanswered)
        took_ms = durations[turn.seat][answered[turn.seat]]
        answered[turn.seat] += 1
        completed += queue.answered(turn.seat, took_ms)
    return completed


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 9])
def test_queue_is_fair_and_does_not_depend_on_the_order_of_answers(slots: int) -> None:
    for seed in range(40):
        chance = Random(seed)
        durations = [[chance.randint(0, 6) for _ in range(3)] for _ in range(5)]
        done = run_queue(durations, slots=slots, chance=Random(0))

        assert all(run_queue(durations, slots=slots, chance=Random(dice)) == done for dice in range(1, 4))
        assert sorted(turn.round for turn in done) == list(range(15))
        spans = {turn.round: (turn.span.started_ms, turn.span.ended_ms) for turn in done if turn.span is not None}
        ends = [spans[turn.round][1] for turn in done]
        assert ends == sorted(ends)
        starts = sorted(done, key=lambda turn: turn.round)
        started = [spans[turn.round][0] for turn in starts]
        assert started == sorted(started)
        assert sorted(turn.seat for turn in starts[:5]) == list(range(5))
        running = [sum(start <= at < end for start, end in spans.values()) for at in range(100)]
        assert max(running) <= slots


def test_turns_that_end_together_are_heard_in_seat_order_before_the_next_start() -> None:
    for order in permutations(range(3)):
        queue = SpeakingQueue.begin(order, dict.fromkeys(range(3), 2), slots=3)
        done = [turn for seat in order for turn in queue.answered(seat, 5)]

        assert [turn.seat for turn in done] == [0, 1, 2]
        assert [(turn.seat, turn.started_ms) for turn in queue.unanswered()] == [(0, 5), (1, 5), (2, 5)]


def test_nothing_is_heard_before_every_turn_under_way_is_known() -> None:
    queue = SpeakingQueue.begin(range(3), dict.fromkeys(range(3), 1), slots=2)

    assert queue.answered(0, 1) == []
    assert [turn.seat for turn in queue.answered(1, 100)] == [0]
    # With nobody left to wait for, the rest follows at once.
    assert [turn.seat for turn in queue.answered(2, 50)] == [2, 1]
