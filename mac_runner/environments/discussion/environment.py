"""The environment `discussion`: the agents of an experiment discuss its questions in turn.

One running discussion: turns out, replies in.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from itertools import chain
from random import Random
from typing import Final, cast

from msgspec.structs import replace

from mac_runner.config import Experiment
from mac_runner.environments.base import Policy, gated, player_of
from mac_runner.environments.dialogue import Dialogue, rehearsal
from mac_runner.environments.discussion.bots import POLICIES
from mac_runner.environments.discussion.identity import identity_of
from mac_runner.environments.discussion.prompts import KIND, Form, PromptWriter, Rules, aside_field
from mac_runner.environments.discussion.questions import Choice, Question, QuestionType, parse_question, permuted
from mac_runner.environments.discussion.reading.answers import Found, read_fields
from mac_runner.environments.discussion.record import outcome_of, record_of, state_of
from mac_runner.environments.discussion.roles import NO_OBJECT, ROLES
from mac_runner.environments.discussion.settings import DiscussionConfig, DiscussionRole
from mac_runner.environments.discussion.state import DiscussionState, Ending, Said, Seat, ending, readable
from mac_runner.environments.markup import defuse
from mac_runner.environments.reading import Cause, Problem, is_placeholder
from mac_runner.environments.templates import PromptTemplate, said_of_template
from mac_runner.errors import ConfigError
from mac_runner.spec import AgentDefinition
from mac_runner.types import FinishReason, JsonObject, Prompt, Reply, Task, Turn

ASIDE_CHARS_MAX: Final = 500
"""What a private channel takes of one reply."""


class DiscussionConversation(Dialogue[Said]):
    """The Conversation contract over the state of a discussion."""

    too_long = (
        "the discussion has outgrown the context of the engine; have fewer rounds, agents or history_rounds, or "
        "shorter replies"
    )

    def __init__(self, task: Task, state: DiscussionState, rules: Rules) -> None:
        super().__init__(task, rules.retry)
        self._state = state
        self._rules = rules
        self._seats = {seat.agent: seat for seat in state.seats}
        self._writer = PromptWriter(state, rules)
        self._ending: Ending | None = None
        self._outcome: JsonObject | None = None

    @property
    def outcome(self) -> JsonObject | None:
        """What was answered, once it has ended."""
        return self._outcome

    @property
    def rounds_completed(self) -> int:
        """Rounds in which all have spoken."""
        return self._state.round

    def turns(self) -> tuple[Turn, ...]:
        """One for each seat that has not spoken in the present round."""
        if self._ending is not None:
            return ()
        return tuple(
            self._turn(seat.agent, round=self._state.round, place=seat.place, after=seat.waits_for)
            for seat in self._state.waiting()
        )

    def prompt(self, turn: Turn) -> Prompt:
        """What the seat knows now."""
        return self._writer.prompt(self._seats[turn.agent], turn.attempt, self._last_flaw(turn.agent))

    def record(self) -> JsonObject:
        """Who took part as what, and all that was said."""
        return record_of(self._state)

    def fingerprint(self) -> str:
        """Digest of the state and of the corrections under way."""
        state = state_of(self._state, self._ending) | {"problems": [*self._pending().items()]}
        return hashlib.sha256(json.dumps(state, sort_keys=True).encode("ascii")).hexdigest()

    def _apply(self, turn: Turn, found: Said) -> str:
        self._put(turn, found)
        answer = f"{found.answer} ({found.how}): " if found.answer is not None else ""
        return defuse(f"{answer}{found.text}")

    def _default(self, turn: Turn, problem: Problem) -> str:
        self._put(turn, None, problem.cause)
        return "passes"

    def _put(self, turn: Turn, said: Said | None, cause: Cause | None = None) -> None:
        before = self._state.round
        self._state.put(self._seats[turn.agent], said, cause, turn=turn.key)
        if self._state.round > before:
            settings = self._rules.settings
            self._ending = ending(self._state, settings.max_rounds, settings.stopping)
            if self._ending is not None:
                self._outcome = outcome_of(self._state, self._ending, self._replies)

    def _read(self, turn: Turn, reply: Reply) -> Said | Problem:
        seat = self._seats[turn.agent]
        role, moment = ROLES[seat.role], self._writer.moment(seat)
        form = self._writer.form(seat, moment)
        signs = frozenset() if moment.matcher is None else moment.matcher.signs
        found = read_fields(reply, form.sought, signs=signs)
        if isinstance(found, Problem):
            return found
        if copied := _copied(found, form):
            return Problem(Cause.PLACEHOLDER, copied)
        said = role.read(found, moment)
        if said is NO_OBJECT and reply.finish_reason is FinishReason.LENGTH:
            return Problem(Cause.CUT_OFF, f"it was cut off before its {role.decisive}; be shorter")
        if isinstance(said, Problem) or not seat.channels:
            return said
        return replace(said, asides=_asides(found, seat))


def _copied(found: Found, form: Form) -> str | None:
    """What of the form is given back in the place of an answer."""
    for name, shown in zip(form.names, form.shown, strict=True):
        if is_placeholder(found.get(name), (name, *shown)):
            return f"its {name} is what the form shows and no answer; give your own"
    if is_placeholder(found.prose, chain(*form.shown)):
        return "it is what the form shows and no answer; give your own"
    return None


def _asides(found: Found, seat: Seat) -> tuple[tuple[str, str], ...]:
    said = ((channel, found.get(aside_field(channel))[:ASIDE_CHARS_MAX].strip()) for channel in seat.channels)
    return tuple((channel, text) for channel, text in said if defuse(text))


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
    rules = dataclasses.replace(rules, retry=rules.retry.model_copy(update={"when_exhausted": "pass"}))
    task = rehearsal([seat.agent for seat in seats])
    short = dataclasses.replace(rules, settings=rules.settings.model_copy(update={"max_rounds": rounds}))
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
