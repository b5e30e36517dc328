"""A template of one's own, tried on made-up discussions before anything runs.

The agents are those of the experiment, and every form of a prompt comes up: a question with choices and an open one, a
first round, a later one and the last, a correction. What fails here would fail in the first conversation, hours later.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.discussion.players import POLICIES
from mac_runner.environments.discussion.questions import Choice, Question, QuestionType
from mac_runner.environments.discussion.table import Seat, Table
from mac_runner.environments.discussion.writing import Rules
from mac_runner.types import Reply

_QUESTIONS: Final = (
    Question(
        question_id="rehearsal_choices",
        question_type=QuestionType.MULTIPLE_CHOICE,
        context="Two people wait for a bus.",
        question="Who is late?",
        choices=(Choice(id="A", text="The first"), Choice(id="B", text="The second"), Choice(id="C", text="Unknown")),
    ),
    Question(question_id="rehearsal_open", question_type=QuestionType.OPEN_ENDED, question="Bridge or ferry?"),
)


def rehearse(rules: Rules, seats: tuple[Seat, ...]) -> None:
    """Render every kind of prompt once. Raises ConversationError naming the line of the template that fails."""
    rounds = min(rules.settings.max_rounds, 2)
    short = replace(rules, settings=rules.settings.model_copy(update={"max_rounds": rounds}))
    for question in _QUESTIONS:
        # With a round more to come the second one is not the last.
        for trial in (short, rules):
            _play(DiscussionConversation(Table(question=question, seats=seats), trial), rounds)


def _play(conversation: DiscussionConversation, rounds: int) -> None:
    while conversation.rounds_completed < rounds and (turns := conversation.turns()):
        turn = turns[0]
        view = conversation.prompt(turn).view
        text = POLICIES["discussant"](view, Random(0)) if turn.attempt or turn.round else ""  # noqa: S311 - play
        conversation.receive(turn, Reply(text=text))
