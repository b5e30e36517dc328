"""The environment `discussion`: the agents of an experiment discuss its questions in turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Final, cast

from mac_runner.config import AgentDefinition, Experiment
from mac_runner.environments.base import Policy, gated, player_of
from mac_runner.environments.dialogue import rehearsal
from mac_runner.environments.discussion.bots import POLICIES
from mac_runner.environments.discussion.conversation import DiscussionConversation
from mac_runner.environments.discussion.identity import identity_of
from mac_runner.environments.discussion.prompts import KIND, Rules
from mac_runner.environments.discussion.questions import Choice, Question, QuestionType, parse_question, permuted
from mac_runner.environments.discussion.settings import DiscussionConfig, DiscussionRole
from mac_runner.environments.discussion.state import DiscussionState, Seat, readable
from mac_runner.environments.templates import PromptTemplate, said_of_template
from mac_runner.errors import ConfigError
from mac_runner.types import Reply, Task

_TURN_BYTES_MIN: Final = 1_000
"""A turn in a transcript: its key, its digest, a short reply, what was made of it, and the event it became."""


class DiscussionEnvironment:
    """Conversation number i is about question i, over and over; every agent definition takes part once."""

    lineup = None

    def __init__(self, experiment: Experiment) -> None:
        settings = experiment.settings_as(DiscussionConfig)
        prompt = settings.prompt
        with said_of_template("discussion", "prompt", file=prompt.template_file):
            template = PromptTemplate(KIND, prompt.template, source=prompt.template_file or "template")
        self._rules = Rules(settings=settings, template=template, retry=experiment.retry_config)
        self._seats = tuple(_seated(experiment.agent_definitions, settings))
        self.transcript_bytes_min = _rounds_min(settings, self._seats) * len(self._seats) * _TURN_BYTES_MIN
        if prompt.template is not None:
            with said_of_template("discussion", "prompt", file=prompt.template_file):
                rehearse(self._rules, self._seats)

    def open(self, task: Task) -> DiscussionConversation:
        """A discussion before its first reply."""
        if task.material is None:
            raise ConfigError(f"task {task.task_id} has no question; it was planned for another environment")
        question = parse_question({**task.material})
        if self._rules.settings.prompt.choice_order == "permuted":
            question = permuted(question, task.seed)
        return DiscussionConversation(task, DiscussionState(question=question, seats=self._seats), self._rules)

    def policy(self, name: str) -> Policy:
        """A scripted discussant."""
        return player_of("discussion", POLICIES, name)


def _rounds_min(settings: DiscussionConfig, seats: tuple[Seat, ...]) -> int:
    """How many rounds a discussion has at least."""
    stopping = settings.stopping
    has_judge = stopping.by_judge and any(seat.role == "judge" for seat in seats)
    may_stop = has_judge or stopping.on_consensus or stopping.stable_rounds is not None
    return stopping.min_rounds if may_stop else settings.max_rounds


def _seated(definitions: tuple[AgentDefinition, ...], settings: DiscussionConfig) -> Iterator[Seat]:
    """The agents in the order in which they speak: that of the definitions, each behind those it waits for."""
    by_id = {definition.agent_id: definition for definition in definitions}
    waits = {name: definition.role_specific_config.speak_after_within_round for name, definition in by_id.items()}
    listed = {name: definition.role_specific_config.visible_to for name, definition in by_id.items()}
    visible_to = {name: None if others is None else frozenset(others) for name, others in listed.items()}
    reads = readable(settings.routing_strategy, tuple(by_id), visible_to)
    keys = dict.fromkeys(
        key for each in definitions if not isinstance(each.demographics, str) for key in each.demographics
    )
    for place, name in enumerate(gated(by_id, waits)):
        channels = settings.routing_strategy.channels.items()
        yield Seat(
            agent=name,
            role=cast("DiscussionRole", by_id[name].role),  # `rule_problems` refuses any other.
            model=by_id[name].model,
            place=place,
            identity=identity_of(by_id[name], settings.identity_reveal_config, tuple(keys)),
            waits_for=frozenset(waits[name]),
            reads=reads[name],
            channels=tuple(channel for channel, members in channels if name in members),
        )


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
    rules = replace(rules, retry=rules.retry.model_copy(update={"when_exhausted": "pass"}))
    task = rehearsal([seat.agent for seat in seats])
    short = replace(rules, settings=rules.settings.model_copy(update={"max_rounds": rounds}))
    for question in _QUESTIONS:
        # With a round more to come the second one is not the last.
        for trial in (short, rules):
            _play(DiscussionConversation(task, DiscussionState(question=question, seats=seats), trial), rounds)


def _play(conversation: DiscussionConversation, rounds: int) -> None:
    while conversation.rounds_completed < rounds and (turns := conversation.turns()):
        turn = turns[0]
        view = conversation.prompt(turn).view
        text = POLICIES["discussant"](view, Random(0)) if turn.attempt or turn.round else ""  # noqa: S311 - play
        conversation.receive(turn, Reply(text=text))
