"""A game as a Conversation: turns, prompts, tools, corrections, and the order of replies that leaves no trace.

`test_contract.py` plays whole games by the promises of every environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from mac_runner.environments.town_of_salem.testing import (
    POLICIES,
    TOOL_CALLS_PER_TURN_MAX,
    Death,
    DiscussionMode,
    Game,
    Options,
    Phase,
    Seance,
    SeatView,
)
from mac_runner.spec import RetryConfig
from mac_runner.types import ReceiptKind, Reply, TokenCount
from tests.environments.town_of_salem.table import (
    ELEVEN,
    advance,
    answer,
    make_task,
    open_game,
    play,
    rows,
    told_now,
    turn_of,
)

CLASSIC = ELEVEN[:10]
REPO = Path(__file__).parents[3]
LOBBY_REQUEST = '<tool_request name="get_lobby"></tool_request>'


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


@pytest.mark.parametrize("mode", ["random", "bidding"])
def test_a_game_may_end_as_capped_in_any_round(mode: DiscussionMode) -> None:
    wanted = {Phase.GREETING, Phase.NIGHT_CHAT, Phase.NIGHT, Phase.DISCUSSION, Phase.VOTING}
    phases = set[Phase]()
    for tokens in (first for start in (20, 60, 100) for first in range(start, 2_000, 120)):
        game = open_game(CLASSIC, options=Options(completion_tokens_max=tokens, discussion_mode=mode))
        phase = game.state.phase
        while turns := game.turns():
            phase = game.state.phase
            text = POLICIES["random"](game.prompt(turns[0]).view, Random(turns[0].key))
            game.receive(turns[0], Reply(text=text, tokens=TokenCount(prompt=1, completion=7)))
        if game.outcome is not None and game.outcome["ending"] == "capped":
            phases.add(phase)
        if phases >= wanted:
            return

    assert phases >= wanted


def test_sequential_round_has_each_seat_wait_for_the_one_before_and_a_simultaneous_one_nobody() -> None:
    turns = open_game(CLASSIC).turns()

    assert [turn.after for turn in turns] == [frozenset(), *(frozenset({turn.agent}) for turn in turns[:-1])]
    assert [turn.place for turn in turns] == list(range(10))
    assert {turn.round for turn in turns} == {0}
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
    assert "between us" in told_now(game)


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
    assert receipt.detail in repr(game.prompt(turn).view)
    assert json.loads(answer(game, LOBBY_REQUEST).detail) == {
        "roles": sorted(role.title() for role in CLASSIC),
        "seats": [player.name for player in game.state.players],
    }

    assert answer(game, "<wait/>").kind is ReceiptKind.ACT
    assert game.turns()[0].step == 0
    assert thread(game) == []


def test_tool_request_that_cannot_be_answered_is_told_why() -> None:
    for request, expected in (
        ('<tool_request name="get_role">Wizard</tool_request>', "there is no role 'Wizard'"),
        ('<tool_request name="sudo">x</tool_request>', "there is no tool 'sudo'"),
        ("<tool_request>x</tool_request>", "there is no tool ''"),
        ('<tool_request name="get_role"></observation><b></tool_request>', "‹/observation›‹b›"),
    ):
        game = open_game(CLASSIC)
        receipt = answer(game, request)

        assert receipt.kind is ReceiptKind.OBSERVATION
        assert expected in json.loads(receipt.detail)["error"]
        assert thread(game)[-1][1].count("<") == 2


def test_tool_requests_of_a_turn_are_limited() -> None:
    game = open_game(CLASSIC, max_retries=1)
    kinds = [answer(game, LOBBY_REQUEST).kind for _ in range(TOOL_CALLS_PER_TURN_MAX + 2)]

    assert kinds == [ReceiptKind.OBSERVATION] * TOOL_CALLS_PER_TURN_MAX + [ReceiptKind.CORRECTION, ReceiptKind.DEFAULT]


def test_unusable_reply_is_corrected_with_the_reason_then_replaced_by_waiting() -> None:
    game = open_game(CLASSIC)
    first = game.turns()[0]
    receipts = [answer(game, "I vote for Beatrice.") for _ in range(2)]
    turn = game.turns()[0]
    assert [receipt.kind for receipt in receipts] == [ReceiptKind.CORRECTION] * 2
    assert (turn.agent, turn.attempt) == (first.agent, 2)
    assert [role for role, _ in thread(game)] == ["assistant", "user"] * 2
    assert receipts[0].detail in thread(game)[1][1]

    last = answer(game, "<speak>still not closed")
    assert last.kind is ReceiptKind.DEFAULT
    assert last.detail.startswith("wait (<speak> was")
    assert game.turns()[0].agent != first.agent
    *refused, act = rows(game, "acts")
    assert [(attempt["legality"], attempt["reason"]) for attempt in refused] == [
        *(("refused", receipt.detail) for receipt in receipts),
        ("refused", last.detail.removeprefix("wait (").removesuffix(")")),
    ]
    assert act["legality"] == "default"
    assert (act["player"], act["act"], act["is_default"]) == (first.agent, "wait", True)


def test_default_act_and_the_same_act_chosen_are_two_states() -> None:
    chosen, defaulted = open_game(CLASSIC, max_retries=0), open_game(CLASSIC, max_retries=0)
    assert chosen.fingerprint() == defaulted.fingerprint()
    answer(chosen, "<wait/>")
    assert answer(defaulted, "").kind is ReceiptKind.DEFAULT

    assert chosen.fingerprint() != defaulted.fingerprint()
    assert chosen.record() != defaulted.record()


def test_will_stands_beside_an_act_that_is_refused_only_once_it_is_accepted() -> None:
    game = open_game(CLASSIC)
    answer(game, "<will>mine</will><vote>Caleb</vote>")

    assert {player.will for player in game.state.players} == {""}


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


# The keeper of the jail speaks first in each round of the night, and the prisoner answers; all others talk at once.
# The prisoner sits before the keeper, so that seat order alone would let the prisoner speak first.

JAIL = ("sheriff", "doctor", "escort", "jailor", "godfather", "framer", "mafioso")
ORDERS = 12


def night(*, roles: tuple[str, ...] = JAIL) -> Game:
    """A game in its first night chat, with Abel in jail."""
    game = open_game(roles, options=Options())
    return advance(
        game, Phase.NIGHT_CHAT, says=lambda turn: "<jail>Abel</jail>" if turn.agent == "Dorothea" else "<wait/>"
    )


def say(game: Game, name: str, text: str) -> None:
    game.receive(turn_of(game, name), Reply(text=text))


def test_prisoner_answers_what_the_keeper_says_in_the_same_round() -> None:
    game = night()
    assert turn_of(game, "Abel").after == {"Dorothea"}
    assert turn_of(game, "Abel").place > turn_of(game, "Dorothea").place
    assert all(not turn.after for turn in game.turns() if turn.agent != "Abel")

    before = game.prompt(turn_of(game, "Elias")).sha256
    say(game, "Dorothea", "<speak>Who are you?</speak>")
    assert not turn_of(game, "Abel").after
    assert "“Who are you?”" in told_now(game, "Abel")
    assert "Dorothea" not in told_now(game, "Abel").rpartition("KNOWN TO YOU")[2].partition("NOW")[0]
    assert game.prompt(turn_of(game, "Elias")).sha256 == before, "no other seat learns of it"


def test_keeper_who_does_not_speak_lets_the_prisoner_speak() -> None:
    game = night()
    say(game, "Dorothea", "<wait/>")

    assert not turn_of(game, "Abel").after
    say(game, "Abel", "<speak>I am the Sheriff.</speak>")
    assert {turn.agent for turn in game.turns()} == {"Elias", "Felicity", "Gideon"}


def test_keeper_who_speaks_elsewhere_is_heard_there_when_all_are() -> None:
    """A dead Medium talks with the Jailor: what is said to the dead must not depend on who answers first."""
    game = night(roles=(*JAIL, "medium"))
    dead = replace(game.state.players[7], death=Death(day=1, at_night=False, causes=("lynch",)))
    haunted = replace(game.state.with_player(dead), seance=Seance(medium=7, target=3), order=(*game.state.order, 7))
    game = Game(task=make_task((*JAIL, "medium")), state=haunted, opening=(), retry=RetryConfig(max_retries=0))
    before, events = game.prompt(turn_of(game, "Hester")).sha256, len(game.log.events)
    say(game, "Dorothea", '<speak channel="seance">Who killed you?</speak>')

    assert len(game.log.events) == events
    assert game.prompt(turn_of(game, "Hester")).sha256 == before
    assert not turn_of(game, "Abel").after


@pytest.mark.ci
def test_state_is_the_same_whatever_the_order_of_arrival() -> None:
    """All talk every night; the keeper names his channel, says nothing, or just talks."""

    def talkative(view: object, chance: Random) -> str:
        assert isinstance(view, SeatView)
        choices = {choice.verb: choice for choice in view.choices}
        if "jail" in choices and chance.random() < 0.9:
            return f"<jail>{chance.choice(choices['jail'].targets)}</jail>"
        if view.phase is Phase.NIGHT_CHAT and chance.random() < 0.8:
            channel = chance.choice(["", *choices["speak"].choices])
            attribute = f' channel="{channel}"' if channel else ""
            return f"<speak{attribute}>{view.name} {chance.randrange(100)}</speak>"
        return "<wait/>"

    def whole(order: Random | None) -> tuple[str, list[tuple[str, object]]]:
        game = open_game(JAIL, options=Options(max_days=5))
        play(game, talkative, order=order)
        return game.fingerprint(), [(str(event.kind), dict(event.data)) for event in game.log.events]

    fixed = whole(None)
    assert [kind for kind, _ in fixed[1]].count("jailed") > 2
    assert all(whole(Random(number)) == fixed for number in range(ORDERS))
