"""Information lag: first in, first out, on a clock that depends on nothing but the replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import (
    Completed,
    DiscussionMode,
    EventKind,
    Game,
    GameLatency,
    Options,
    Phase,
    SpeakingQueue,
    new_game,
)
from mac_runner.types import JsonObject, Receipt, Reply, TokenCount, Turn
from tests.environments.town_of_salem.table import make_task

ROLES = ("sheriff", "doctor", "godfather")
SECONDS = GameLatency(prefill_ms=0, kernel_ms=1000, quantum=1, tool_ms=500)
"""A token a second, so that the tokens of a reply are its seconds."""

RUNTIMES_S = {"A1": [4, 3], "A2": [8, 6], "A3": [4, 2]}
WORDS = {
    ("A1", 0): "I suggest we hang the quiet player.",
    ("A2", 0): "Hold on: I am the doctor.",
    ("A3", 0): "Seconded: quiet is sus.",
    ("A1", 1): "Fine. A2, any proof? A3, why agree so fast?",
    ("A3", 1): "Quiet players are often evil. A2's claim is convenient.",
    ("A2", 1): "My logs will prove it. Jailor can confirm I healed them.",
}
COMPLETED = [(4, "A1", 0), (8, "A2", 0), (8, "A3", 0), (11, "A1", 1), (13, "A3", 1), (14, "A2", 1)]
"""Seconds, agent and turn: the timeline of three agents on two slots."""


def lagged_game(*, rounds: int = 2, slots: int = 2, latency: GameLatency = SECONDS, max_retries: int = 2) -> Game:
    """A game of three at the beginning of its first discussion."""
    options = Options(
        discussion_mode=DiscussionMode.INFORMATION_LAG,
        discussion_rounds=rounds,
        speaking_slots=slots,
        greeting_rounds=0,
    )
    task = make_task(ROLES)
    names = [f"A{seat + 1}" for seat in range(3)]
    task = replace(task, agents=tuple(replace(agent, agent_id=f"A{agent.seat + 1}") for agent in task.agents))
    state, opening = new_game(seed=task.seed, names=names, roles=ROLES, lobby=ROLES, options=options)
    game = Game(task=task, state=state, opening=opening, max_retries=max_retries, latency=latency)
    while game.state.phase is not Phase.DISCUSSION:
        game.receive(game.turns()[0], Reply(text="<wait/>"))
    return game


def say(game: Game, turn: Turn, text: str, *, tokens: int) -> Receipt:
    return game.receive(turn, Reply(text=text, tokens=TokenCount(completion=tokens)))


def heard(game: Game, turn: Turn) -> set[tuple[str, int]]:
    """Which of WORDS the prompt of a turn shows."""
    text = game.prompt(turn).messages[1].content
    return {key for key, words in WORDS.items() if f"{key[0]} says: “{words}”" in text}


def spoken(game: Game) -> list[JsonObject]:
    acts = game.record()["acts"]
    assert isinstance(acts, list)
    return [act for act in acts if isinstance(act, dict) and act["phase"] == "discussion" and act["act"]]


@pytest.mark.parametrize("dice", range(6))
def test_three_agents_on_two_slots_speak_at_the_times_of_the_timeline_and_hear_what_was_said_by_then(
    dice: int,
) -> None:
    """The timeline of the information-lag model, whatever the order in which the replies really come in.

    Where a well-known table of it lists an agent both as queued and as active (A3 at 4 s) or leaves the queue of 13 s
    with agents that have started, the rules stand: who takes a slot leaves the queue.
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
            state = [f"A{seat + 1}" for seat in queue.waiting], [f"A{turn.seat + 1}" for turn in queue.active]
            queues += [state] if not queues or queues[-1] != state else []

    ended = [(act["simulated"]["ended_ms"], act["player"], act["text"]) for act in spoken(game)]  # type: ignore[index,call-overload]
    assert ended == [(1000 * at, agent, WORDS[agent, turn]) for at, agent, turn in COMPLETED]
    said = [(event.data["player"], event.data["text"]) for event in game.log.public if event.kind is EventKind.SPEECH]
    assert said == [(agent, WORDS[agent, turn]) for _, agent, turn in COMPLETED]
    first = {("A1", 0), ("A2", 0), ("A3", 0)}
    assert seen == {
        ("A1", 0): set(),
        ("A2", 0): set(),
        ("A3", 0): {("A1", 0)},
        ("A1", 1): first,
        # It started at 8 s, and A1 spoke at 11 s and A3 at 13 s.
        ("A2", 1): first,
        ("A3", 1): first | {("A1", 1)},
    }
    assert queues == [
        (["A3"], ["A1", "A2"]),
        (["A1"], ["A2", "A3"]),
        (["A3"], ["A1", "A2"]),
        ([], ["A2", "A3"]),
    ]


def test_start_of_a_turn_is_recorded_beside_its_end() -> None:
    game = lagged_game()
    done = dict.fromkeys(RUNTIMES_S, 0)
    while game.state.phase is Phase.DISCUSSION:
        turn = game.turns()[-1]
        say(game, turn, "<wait/>", tokens=RUNTIMES_S[turn.agent][done[turn.agent]])
        done[turn.agent] += 1
    spans = [(act["player"], act["simulated"]) for act in spoken(game)]

    assert spans == [
        ("A1", {"started_ms": 0, "ended_ms": 4000}),
        ("A2", {"started_ms": 0, "ended_ms": 8000}),
        ("A3", {"started_ms": 4000, "ended_ms": 8000}),
        ("A1", {"started_ms": 8000, "ended_ms": 11000}),
        ("A3", {"started_ms": 11000, "ended_ms": 13000}),
        ("A2", {"started_ms": 8000, "ended_ms": 14000}),
    ]


def test_each_turn_is_a_round_of_its_own_numbered_as_they_start() -> None:
    game = lagged_game()
    first = game.state.round
    rounds = []
    while game.state.phase is Phase.DISCUSSION:
        turn = game.turns()[0]
        rounds.append(turn.round)
        assert game.rounds_completed <= turn.round
        say(game, turn, "<wait/>", tokens=1)

    assert rounds == list(range(first, first + 6))
    assert game.state.round == first + 6
    assert {act["round"] for act in spoken(game)} == set(rounds)


def test_turn_takes_the_time_of_its_requests_and_its_tools() -> None:
    latency = GameLatency(prefill_ms=100, kernel_ms=10, quantum=16, tool_ms=7)
    game = lagged_game(rounds=1, slots=1, latency=latency)
    say(game, game.turns()[0], '<tool_request name="get_lobby"></tool_request>', tokens=16)
    say(game, game.turns()[0], "no act", tokens=17)
    say(game, game.turns()[0], "<wait/>", tokens=1)
    # An engine that does not count: 4 characters a token, so 33 tokens.
    game.receive(game.turns()[0], Reply(text="<wait/>" + " " * 123))
    ends = [act["simulated"]["ended_ms"] for act in spoken(game)]  # type: ignore[index,call-overload]

    assert ends == [340 + 7, 340 + 7 + 130]


def test_prompt_of_a_turn_shows_what_was_said_when_it_started_in_all_its_steps() -> None:
    game = lagged_game()
    first, slow = game.turns()
    before = game.prompt(slow).messages[1]
    say(game, first, "<speak>early words</speak>", tokens=1)
    say(game, slow, '<tool_request name="get_lobby"></tool_request>', tokens=9)
    (slow,) = game.turns()

    assert game.prompt(slow).messages[1] == before
    say(game, slow, "<wait/>", tokens=1)
    (third,) = game.turns()
    assert "early words" in game.prompt(third).messages[1].content


def test_player_is_told_which_of_its_own_turns_this_is() -> None:
    game = lagged_game(rounds=2, slots=3)
    assert {game.prompt(turn).messages[1].content.count("round 1.") for turn in game.turns()} == {1}
    for turn in game.turns():
        say(game, turn, "<wait/>", tokens=1)

    assert {game.prompt(turn).messages[1].content.count("round 2.") for turn in game.turns()} == {1}


def run_queue(durations: Sequence[Sequence[int]], *, slots: int, chance: Random) -> list[Completed]:
    """Answer the turns of a queue in a drawn order."""
    turns = {seat: len(of_seat) for seat, of_seat in enumerate(durations)}
    queue = SpeakingQueue.begin(range(len(durations)), turns, slots=slots)
    completed: list[Completed] = []
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
        first = run_queue(durations, slots=slots, chance=Random(0))

        assert all(run_queue(durations, slots=slots, chance=Random(dice)) == first for dice in range(1, 4))
        assert sorted(turn.number for turn in first) == list(range(15))
        assert [turn.span.ended_ms for turn in first] == sorted(turn.span.ended_ms for turn in first)
        starts = sorted(first, key=lambda turn: turn.number)
        assert [turn.span.started_ms for turn in starts] == sorted(turn.span.started_ms for turn in starts)
        assert sorted(turn.seat for turn in starts[:5]) == list(range(5))
        running = [sum(turn.span.started_ms <= at < turn.span.ended_ms for turn in first) for at in range(100)]
        assert max(running) <= slots


def test_turns_that_end_together_are_heard_in_seat_order_before_the_next_start() -> None:
    for order in permutations(range(3)):
        queue = SpeakingQueue.begin(order, dict.fromkeys(range(3), 2), slots=3)
        done = [turn for seat in order for turn in queue.answered(seat, 5)]

        assert [turn.seat for turn in done] == [0, 1, 2]
        assert [(turn.seat, turn.started_ms) for turn in queue.unanswered()] == [(0, 5), (1, 5), (2, 5)]


def test_nothing_is_heard_before_every_turn_under_way_is_known() -> None:
    queue = SpeakingQueue.begin(range(3), dict.fromkeys(range(3), 1), slots=2)

    assert queue.answered(0, 1) == ()
    assert [turn.seat for turn in queue.answered(1, 100)] == [0]
    # With nobody left to wait for, the rest follows at once.
    assert [turn.seat for turn in queue.answered(2, 50)] == [2, 1]
