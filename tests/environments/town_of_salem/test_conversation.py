"""A game as a Conversation: turns, prompts, tools, corrections, and the order of replies that leaves no trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mac_runner.environments.town_of_salem.testing import LOBBIES, TOOL_CALLS_PER_TURN_MAX, Game, Options, Phase
from mac_runner.types import Prompt, Receipt, ReceiptKind, Reply, TokenCount, Turn
from tests.environments.town_of_salem.table import ELEVEN, clumsy, open_game, play

CLASSIC = ELEVEN[:10]
SHORT = Options(max_days=4)
REPO = Path(__file__).parents[3]


def answer(game: Game, text: str) -> Receipt:
    """Answer the first open turn."""
    return game.receive(game.turns()[0], Reply(text=text))


def thread(game: Game) -> list[tuple[str, str]]:
    """What was said back and forth in the first open turn, after the two messages every turn begins with."""
    return [(message.role, message.content) for message in game.prompt(game.turns()[0]).messages[2:]]


def test_game_that_costs_more_tokens_than_it_may_ends_with_the_round_as_capped() -> None:
    game = open_game(ELEVEN, options=Options(completion_tokens_max=100))
    for turn in game.turns():
        assert game.outcome is None
        game.receive(turn, Reply(text="<wait/>", tokens=TokenCount(completion=60)))

    assert game.turns() == ()
    assert game.outcome is not None
    assert game.outcome["ending"] == "capped"
    assert "100" in str(game.outcome["reason"])


def test_sequential_round_has_each_seat_wait_for_the_one_before() -> None:
    turns = open_game(CLASSIC).turns()

    assert [turn.after for turn in turns] == [frozenset(), *(frozenset({turn.agent}) for turn in turns[:-1])]
    assert [turn.place for turn in turns] == list(range(10))
    assert {turn.round for turn in turns} == {0}


def test_simultaneous_round_has_nobody_wait() -> None:
    game = open_game(CLASSIC, options=Options(greeting_rounds=0, night_chat_rounds=0))

    assert game.state.phase is Phase.NIGHT
    assert all(not turn.after for turn in game.turns())


def test_choices_of_a_simultaneous_round_show_in_no_prompt_before_all_are_made() -> None:
    game = open_game(CLASSIC, options=Options(greeting_rounds=0))
    assert game.state.phase is Phase.NIGHT_CHAT
    first, second, *_ = game.turns()
    before = game.prompt(second).sha256
    game.receive(first, Reply(text="<speak>between us</speak>"))

    assert game.prompt(second).sha256 == before
    assert second in game.turns()
    for turn in game.turns():
        game.receive(turn, Reply(text="<wait/>"))
    assert "between us" in game.prompt(game.turns()[0]).messages[1].content


def test_tool_request_is_answered_and_the_turn_continued() -> None:
    game = open_game(CLASSIC)
    agent = game.turns()[0].agent
    request = '<tool_request name="get_role">Doctor</tool_request>'
    receipt = answer(game, request)
    turn = game.turns()[0]

    assert receipt.kind is ReceiptKind.OBSERVATION
    assert json.loads(receipt.detail)["role"] == "Doctor"
    assert (turn.agent, turn.step, turn.attempt) == (agent, 1, 0)
    assert thread(game) == [("assistant", request), ("user", f"<observation>{receipt.detail}</observation>")]
    view = game.prompt(turn).view
    assert receipt.detail in repr(view)

    assert answer(game, "<wait/>").kind is ReceiptKind.ACT
    assert game.turns()[0].step == 0
    assert thread(game) == []


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ('<tool_request name="get_role">Wizard</tool_request>', "there is no role 'Wizard'"),
        ('<tool_request name="sudo">x</tool_request>', "there is no tool 'sudo'"),
        ("<tool_request>x</tool_request>", "there is no tool ''"),
        ('<tool_request name="get_role"></observation><b></tool_request>', "‹/observation›‹b›"),
    ],
)
def test_tool_request_that_cannot_be_answered_is_told_why(request_text: str, expected: str) -> None:
    game = open_game(CLASSIC)
    receipt = answer(game, request_text)

    assert receipt.kind is ReceiptKind.OBSERVATION
    assert expected in json.loads(receipt.detail)["error"]
    assert thread(game)[-1][1].count("<") == 2


def test_tools_answer_from_what_the_seat_may_know() -> None:
    game = open_game(CLASSIC)
    lobby = answer(game, '<tool_request name="get_lobby"></tool_request>')
    graveyard = answer(game, '<tool_request name="get_graveyard"/>')

    assert json.loads(lobby.detail) == {
        "roles": sorted(role.title() for role in CLASSIC),
        "seats": [player.name for player in game.state.players],
    }
    assert json.loads(graveyard.detail)["dead"] == []


def test_tool_requests_of_a_turn_are_limited() -> None:
    game = open_game(CLASSIC, max_retries=1)
    request = '<tool_request name="get_lobby"></tool_request>'
    kinds = [answer(game, request).kind for _ in range(TOOL_CALLS_PER_TURN_MAX + 2)]

    assert kinds == [ReceiptKind.OBSERVATION] * TOOL_CALLS_PER_TURN_MAX + [ReceiptKind.CORRECTION, ReceiptKind.DEFAULT]


def test_unusable_reply_is_corrected_with_the_reason_then_replaced_by_waiting() -> None:
    game = open_game(CLASSIC, max_retries=2)
    first = game.turns()[0]
    receipts = [answer(game, "I vote for Beatrice.") for _ in range(2)]
    turn = game.turns()[0]
    assert [receipt.kind for receipt in receipts] == [ReceiptKind.CORRECTION] * 2
    assert (turn.agent, turn.attempt) == (first.agent, 2)
    roles = [role for role, _ in thread(game)]
    assert roles == ["assistant", "user"] * 2
    assert receipts[0].detail in thread(game)[1][1]

    last = answer(game, "<speak>still not closed")
    assert last.kind is ReceiptKind.DEFAULT
    assert last.detail.startswith("wait (<speak> was")
    assert game.turns()[0].agent != first.agent
    acts = game.record()["acts"]
    assert isinstance(acts, list)
    *refused, act = [act for act in acts if isinstance(act, dict)]
    assert [(attempt["legality"], attempt["reason"]) for attempt in refused] == [
        *(("refused", receipt.detail) for receipt in receipts),
        ("refused", last.detail.removeprefix("wait (").removesuffix(")")),
    ]
    assert act["legality"] == "default"
    assert (act["player"], act["act"], act["is_default"]) == (first.agent, "wait", True)


def test_without_retries_the_first_unusable_reply_is_replaced() -> None:
    assert answer(open_game(CLASSIC, max_retries=0), "").kind is ReceiptKind.DEFAULT


def test_default_act_and_the_same_act_chosen_are_two_states() -> None:
    chosen, defaulted = open_game(CLASSIC, max_retries=0), open_game(CLASSIC, max_retries=0)
    assert chosen.fingerprint() == defaulted.fingerprint()
    answer(chosen, "<wait/>")
    answer(defaulted, "")

    assert chosen.fingerprint() != defaulted.fingerprint()
    assert chosen.record() != defaulted.record()


def test_will_stands_beside_an_act_that_is_refused_only_once_it_is_accepted() -> None:
    game = open_game(CLASSIC)
    answer(game, "<will>mine</will><vote>Caleb</vote>")

    assert {player.will for player in game.state.players} == {""}


def test_asking_for_a_prompt_changes_nothing() -> None:
    def watch(game: Game, turn: Turn, prompt: Prompt) -> None:
        before = game.fingerprint()
        assert game.prompt(turn).messages == prompt.messages
        assert game.fingerprint() == before

    play(open_game(LOBBIES["classic-7"], options=Options(max_days=2)), clumsy, watch=watch)


def test_seed_is_what_makes_a_game_another() -> None:
    prints = {open_game(CLASSIC, seed=seed).fingerprint() for seed in (1, 1, 2)}

    assert len(prints) == 2


def test_ended_game_has_an_outcome_and_no_turns() -> None:
    game = open_game(CLASSIC, options=SHORT)
    records = play(game, clumsy)
    outcome = game.outcome

    assert game.turns() == ()
    assert outcome is not None
    assert game.rounds_completed > 10
    players = outcome["players"]
    assert isinstance(players, list)
    assert len(players) == 10
    keys = [record.turn.key for record in records]
    assert len(set(keys)) == len(keys)


_GAMES = """
from tests.environments.town_of_salem.table import ELEVEN, clumsy, open_game, play
from mac_runner.environments.town_of_salem.bots import POLICIES
for policy in (clumsy, POLICIES["heuristic"]):
    for seed in range(2):
        game = open_game(ELEVEN, seed=seed)
        play(game, policy, seed=seed)
        print(game.fingerprint())
"""


@pytest.mark.ci
def test_games_do_not_depend_on_the_hash_seed_of_the_process() -> None:
    printed = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPO)}
        done = subprocess.run(
            [sys.executable, "-c", _GAMES], env=environ, cwd=REPO, capture_output=True, text=True, check=True
        )
        printed.add(done.stdout)

    assert len(printed) == 1
    assert len(printed.pop().split()) == 4
