"""What every conversation does with replies without use: corrections, then the default or a failure; what it counts."""

from __future__ import annotations

from dataclasses import replace

from mac_runner.environments.discussion.testing import DiscussionEnvironment
from mac_runner.environments.testing import Cause, Dialogue, Problem
from mac_runner.environments.town_of_salem.testing import Options
from mac_runner.plan import plan_tasks
from mac_runner.spec import RetryConfig
from mac_runner.types import (
    Agent,
    FinishReason,
    Receipt,
    ReceiptKind,
    Reply,
    Sampling,
    Task,
    TokenCount,
    Turn,
)
from tests.environments.discussion.table import agent, talk
from tests.environments.town_of_salem.table import ELEVEN, open_game

ABEL = Agent(agent_id="Abel", definition="p", model="m", seat=0, slot=0, sampling=Sampling())
TASK = Task(index=0, task_id="t", seed=0, agents=(ABEL,))
LOOK = Receipt(kind=ReceiptKind.OBSERVATION, detail="a door")


class Guess(Dialogue[int]):
    """One agent names numbers. The word `look` is a tool."""

    too_long = "too long"

    def __init__(self, retry: RetryConfig) -> None:
        super().__init__(TASK, retry)
        self.numbers: list[int | None] = []

    def turn(self) -> Turn:
        return self._turn("Abel", round=len(self.numbers), place=0)

    def counts(self) -> dict[tuple[ReceiptKind, str | None], int]:
        return dict(self._replies["Abel"].counts)

    def tokens(self) -> TokenCount:
        return self._replies["Abel"].tokens

    def pending(self) -> object:
        return self._pending()

    def _read(self, turn: Turn, reply: Reply) -> int | Problem | Receipt:
        if reply.text == "look":
            return LOOK
        return int(reply.text) if reply.text.isdecimal() else Problem(Cause.UNMATCHED, "there was no number")

    def _apply(self, turn: Turn, found: int) -> str:
        self.numbers.append(found)
        return str(found)

    def _default(self, turn: Turn, problem: Problem) -> str:
        self.numbers.append(None)
        return "none"


def said(guess: Guess, text: str) -> tuple[str, str, str]:
    """The key of the turn, and the kind and the detail of what came of a reply."""
    turn = guess.turn()
    receipt = guess.receive(turn, Reply(text=text, tokens=TokenCount(prompt=5, completion=1)))
    return turn.key, str(receipt.kind), receipt.detail


def test_reply_of_no_use_is_corrected_as_often_as_allowed_then_the_conversation_goes_on_without() -> None:
    guess = Guess(RetryConfig(max_retries=2))

    assert [said(guess, text) for text in ("a", "look", "b", "c", "7")] == [
        ("0/Abel/0/0", "correction", "there was no number"),
        ("0/Abel/0/1", "observation", "a door"),
        ("0/Abel/1/1", "correction", "there was no number"),
        ("0/Abel/1/2", "default", "none (there was no number)"),
        ("1/Abel/0/0", "act", "7"),
    ]
    assert guess.numbers == [None, 7]


def test_conversation_that_may_not_go_on_without_fails_and_says_who_gave_nothing_of_use() -> None:
    guess = Guess(RetryConfig(max_retries=0, when_exhausted="fail"))
    before = guess.pending()
    _, kind, detail = said(guess, "a")

    assert kind == "failure"
    assert detail == (
        "turn 0/Abel/0/0: Abel gave no usable reply and has no corrections left [unmatched]: there was no number"
    )
    assert (guess.numbers, guess.pending()) == ([], before)


def test_prompt_that_is_too_long_fails_the_conversation_with_its_remedy() -> None:
    guess = Guess(RetryConfig())

    receipt = guess.receive(guess.turn(), Reply(text="", finish_reason=FinishReason.OVERFLOW))
    assert (receipt.kind, receipt.detail) == (ReceiptKind.FAILURE, "too long")


def test_overflow_that_is_asked_again_takes_a_turn_of_its_own_and_no_correction() -> None:
    game = open_game(ELEVEN, options=Options(), max_retries=1)
    first = game.turns()[0]
    game.receive(first, Reply(text="", finish_reason=FinishReason.OVERFLOW))
    kinds = [game.receive(game.turns()[0], Reply(text="nothing")).kind for _ in range(2)]

    assert kinds == [ReceiptKind.CORRECTION, ReceiptKind.DEFAULT]


def test_replies_are_counted_by_kind_and_cause_with_their_tokens() -> None:
    guess = Guess(RetryConfig(max_retries=1))
    for text in ("a", "look", "b", "7", "8"):
        said(guess, text)

    assert guess.counts() == {
        (ReceiptKind.CORRECTION, "unmatched"): 1,
        (ReceiptKind.OBSERVATION, None): 1,
        (ReceiptKind.DEFAULT, "unmatched"): 1,
        (ReceiptKind.ACT, None): 2,
    }
    assert guess.tokens() == TokenCount(prompt=25, completion=5)


def test_replies_that_are_corrected_are_pending_until_the_turn_is_over() -> None:
    guess = Guess(RetryConfig())
    before = guess.pending()
    said(guess, "a")
    corrected = guess.pending()
    said(guess, "7")

    assert corrected != before
    assert guess.pending() == before


def test_seat_of_a_discussion_is_asked_of_the_model_that_its_task_names() -> None:
    """A fork may give a seat another model."""
    experiment = talk(agent("ann"), agent("bob"))
    task = next(iter(plan_tasks(experiment, None)))
    forked = replace(task, agents=tuple(replace(each, model=f"of {each.agent_id}") for each in task.agents))

    turns = DiscussionEnvironment(experiment).open(forked).turns()
    assert [turn.model for turn in turns] == ["of ann", "of bob"]
