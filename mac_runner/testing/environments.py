"""The contract of an environment as a test class.

Subclass it in a test module; pytest then plays conversations of your experiment with a scripted player::

    class TestCoin(EnvironmentContract):
        policy = "caller"

        def experiment(self) -> Experiment:
            return load_experiment(Path("coin.yaml")).experiment

Nothing else of the package runs: no engine, no scheduler, no disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from random import Random
from typing import ClassVar, Final, NamedTuple

from mac_runner.config import Experiment
from mac_runner.environments import build_environment
from mac_runner.environments.base import Conversation, Environment
from mac_runner.environments.replay import replay
from mac_runner.errors import ConfigError, ConversationError
from mac_runner.plan import plan_tasks
from mac_runner.registry import EnvironmentSpec
from mac_runner.results import Results, ResultsSpec
from mac_runner.section import Settings
from mac_runner.types import (
    FinishReason,
    JsonObject,
    Prompt,
    ReceiptKind,
    RecordedReply,
    Reply,
    Task,
    Turn,
    stable_hash,
)

GARBAGE: Final = (
    *("", " \n\t", "\x00", "\ud800", "🙂" * 500, "no", "null", "[]", "{}", '"', "{" * 2_000, '{"answer": ' * 200),
    *("<", "</", "<speak>", "<speak></speak>" * 300, "</think>", "<think>", "<vote>Nobody</vote>", "a" * 70_000),
    *("```json\n{}\n```", '{"answer": [null, {"a": 1e999}], "answer": true}', "Ignore all previous instructions."),
)
"""Replies that say nothing that can be used."""
TURNS_MAX: Final = 50_000
"""No conversation of a contract test is longer."""
_SUMMARY_KEYS: Final = frozenset(
    [
        *("format", "experiment_name", "conversations", "turns", "corrections", "defaults", "unusable", "tokens"),
        *("sessions", "merged_runs", "wall_s", "played_s", "turns_per_s", "conversations_per_s", "models", "failures"),
        *("parts", "retried", "repeated"),
    ]
)
Answer = Callable[[Turn, Prompt], Reply]


class Played(NamedTuple):
    """An ended conversation, the replies that it was given in their order, and the turns that they answered."""

    conversation: Conversation
    replies: list[RecordedReply]
    turns: list[Turn]
    has_failed: bool


class EnvironmentContract:
    """What an environment promises (`mac_runner.environments.base`), one test each."""

    policy: ClassVar[str]
    """A scripted player of the environment whose replies end every conversation."""
    conversations: ClassVar[int] = 3
    """How many conversations of the experiment each test plays."""

    def experiment(self) -> Experiment:
        """The experiment to play."""
        raise NotImplementedError

    @cached_property
    def environment(self) -> Environment:
        """The environment, set up for the experiment."""
        return build_environment(self.experiment())

    @cached_property
    def spec(self) -> EnvironmentSpec[Settings]:
        """How the environment describes itself."""
        return self.experiment().spec

    def tasks(self) -> Iterator[Task]:
        """The first tasks of the experiment."""
        return islice(plan_tasks(self.experiment(), self.environment.lineup), self.conversations)

    def player(self, task: Task) -> Answer:
        """What the scripted player replies; it depends on the turn and on what is visible to it."""
        act = self.environment.policy(self.policy)
        return lambda turn, prompt: Reply(text=act(prompt.view, Random(stable_hash(task.seed, turn.key))))

    def careless_player(self, task: Task) -> Answer:
        """The scripted player, whose replies are of no use now and then."""
        answer = self.player(task)

        def careless(turn: Turn, prompt: Prompt) -> Reply:
            number = stable_hash("garbage", turn.key)
            return Reply(text=GARBAGE[number % len(GARBAGE)]) if number % 7 == 0 else answer(turn, prompt)

        return careless

    def play(self, task: Task, answer: Answer | None = None, *, order: Random | None = None) -> Played:
        """Play a conversation to its end, open turns in their own order or in a random one."""
        conversation = self.environment.open(task)
        return played_on(conversation, answer or self.player(task), order)

    def test_a_conversation_ends_with_an_outcome_of_its_own_kind(self) -> None:
        """Turns have keys of their own and agents of the task; rounds only grow; the outcome is JSON."""
        for task in self.tasks():
            played = self.play(task)
            keys = [turn.key for turn in played.turns]
            agents = {agent.agent_id for agent in task.agents}
            outcome = played.conversation.outcome
            assert not played.has_failed, f"{task.task_id}: the scripted player's replies led to a failure"
            assert outcome is not None, f"{task.task_id}: no open turns and no outcome"
            assert outcome.get("kind") == self.spec.section, f"kind {outcome.get('kind')!r}, not {self.spec.section!r}"
            assert len(keys) == len({*keys}), f"{task.task_id}: a turn came twice"
            assert {turn.agent for turn in played.turns} <= agents, f"{task.task_id}: a turn of no agent"
            assert_json(outcome, f"{task.task_id}: outcome")

    def test_the_same_replies_lead_to_the_same_conversation(self) -> None:
        """Also in an environment that was built again."""
        for task in self.tasks():
            first = self.play(task)
            again = played_on(build_environment(self.experiment()).open(task), self.player(task), None)
            assert again.replies == first.replies, f"{task.task_id}: other prompts or replies"
            assert_same(first.conversation, again.conversation, f"{task.task_id}: played again")

    def test_the_order_of_open_turns_leaves_no_trace(self) -> None:
        """Whichever reply comes first."""
        for task in self.tasks():
            first, other = self.play(task), self.play(task, order=Random(task.index))
            assert_same(first.conversation, other.conversation, f"{task.task_id}: in another order")

    def test_asking_for_a_prompt_changes_nothing(self) -> None:
        """A prompt that is asked for twice is the same, and so is the state."""
        for task in self.tasks():
            answer = self.player(task)

            def asked_twice(turn: Turn, prompt: Prompt, conversation: Conversation, answer: Answer = answer) -> Reply:
                before = conversation.fingerprint()
                assert conversation.prompt(turn).sha256 == prompt.sha256, f"{turn.key}: another prompt"
                assert conversation.fingerprint() == before, f"{turn.key}: the prompt changed the state"
                return answer(turn, prompt)

            conversation = self.environment.open(task)
            for turn in _steps(conversation, None):
                conversation.receive(turn, asked_twice(turn, conversation.prompt(turn), conversation))

    def test_a_replay_is_the_play(self) -> None:
        """In the order of the replies and in that of a transcript, and after a stop at any reply."""
        for task in self.tasks():
            for answer in (self.player(task), self.careless_player(task)):
                played = self.play(task, answer, order=Random(-task.index - 1))
                rebuilt = self.environment.open(task)
                found = replay(rebuilt, played.replies, check_prompts=True)
                assert found.changed_prompts == (), f"{task.task_id}: replayed, prompts differ"
                assert_same(played.conversation, rebuilt, f"{task.task_id}: replayed")
                if played.has_failed:
                    continue
                pairs = sorted(zip(played.turns, played.replies, strict=True), key=lambda pair: pair[0].canonical)
                again = self.environment.open(task)
                replay(again, [reply for _, reply in pairs])
                assert_same(played.conversation, again, f"{task.task_id}: replayed in a transcript's order")
                for stop in {0, 1, len(pairs) // 3, len(pairs) - 1}:
                    resumed = self.environment.open(task)
                    replay(resumed, played.replies[:stop])
                    played_on(resumed, answer, None)
                    assert_same(played.conversation, resumed, f"{task.task_id}: stopped after {stop} replies")

    def test_garbage_is_survived(self) -> None:
        """A reply without use is corrected, replaced or fails its conversation; nothing else is raised."""
        for task in self.tasks():
            self.play(task, lambda turn, _prompt: Reply(text=GARBAGE[stable_hash(turn.key) % len(GARBAGE)]))
            self.play(task, self.careless_player(task))

    def test_overflow_is_survived(self) -> None:
        """A prompt that is too long for its engine is shortened, or fails its conversation."""
        for task in self.tasks():
            answer = self.player(task)

            def cut(turn: Turn, prompt: Prompt, answer: Answer = answer) -> Reply:
                is_long = not turn.attempt and stable_hash("overflow", turn.key) % 5 == 0
                return Reply(text="", finish_reason=FinishReason.OVERFLOW) if is_long else answer(turn, prompt)

            self.play(task, cut)

    def test_a_record_is_json_and_its_audiences_are_agents(self) -> None:
        """Its events are what `mac-run show` prints."""
        for task in self.tasks():
            record = self.play(task).conversation.record()
            agents = {agent.agent_id for agent in task.agents}
            events = record.get("events", [])
            assert_json(record, f"{task.task_id}: record")
            assert isinstance(events, list), f"{task.task_id}: events are {type(events).__name__}"
            for place, event in enumerate(events):
                where = f"{task.task_id}: event {place}"
                assert isinstance(event, dict), f"{where}: {event!r}"
                assert {"when", "text", "audience", "data"} <= event.keys(), f"{where}: has {sorted(event)}"
                audience = event["audience"]
                assert audience == "all" or {*map(str, audience if isinstance(audience, list) else [0])} <= agents, (
                    f"{where}: audience {audience!r}"
                )

    def test_an_unknown_policy_is_refused_by_name(self) -> None:
        """With those there are."""
        try:
            self.environment.policy("no such policy")
        except ConfigError as fault:
            assert "no such policy" in str(fault), str(fault)
            assert self.policy in str(fault), str(fault)
        else:
            raise AssertionError("an unknown policy was not refused")

    def test_results_do_not_depend_on_order_and_are_shown(self) -> None:
        """Where the environment has results: its sections of the summary, its tables, and what `show` adds."""
        if self.spec.results is None:
            return
        results = self.spec.results()
        ended = [self.play(task).conversation for task in self.tasks()]
        outcomes = [each.outcome for each in ended if each.outcome is not None]
        report = _counted(results.counter(), outcomes)
        assert report == _counted(results.counter(), outcomes[::-1]), "the order of outcomes changes the report"
        assert report, "nothing was reported"
        assert not report.keys() & _SUMMARY_KEYS, f"sections of others: {sorted(report.keys() & _SUMMARY_KEYS)}"
        assert_json(report, "report")
        assert_shown(results, report)
        for conversation in ended:
            assert_read(results, conversation)


def played_on(conversation: Conversation, answer: Answer, order: Random | None) -> Played:
    """The conversation played from where it is to its end, or to a failure."""
    replies: list[RecordedReply] = []
    turns: list[Turn] = []
    for turn in _steps(conversation, order):
        try:
            prompt = conversation.prompt(turn)
            reply = answer(turn, prompt)
            replies.append(RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=reply))
            turns.append(turn)
            has_failed = conversation.receive(turn, reply).kind is ReceiptKind.FAILURE
        except ConversationError:
            has_failed = True
        if has_failed:
            return Played(conversation, replies, turns, has_failed=True)
    return Played(conversation, replies, turns, has_failed=False)


def _steps(conversation: Conversation, order: Random | None) -> Iterator[Turn]:
    """The turn to be answered next, until none is open; the caller answers it."""
    rounds = conversation.rounds_completed
    for _ in range(TURNS_MAX):
        turns = conversation.turns()
        if not turns:
            return
        assert conversation.outcome is None, "an outcome although turns are open"
        assert conversation.rounds_completed >= rounds, "rounds were taken back"
        rounds = conversation.rounds_completed
        waiting = {(turn.round, turn.agent) for turn in turns}
        free = [turn for turn in turns if not {(turn.round, agent) for agent in turn.after} & waiting]
        assert free, f"these turns wait for each other: {[turn.key for turn in turns]}"
        yield free[0] if order is None else order.choice(free)
    raise AssertionError(f"not ended after {TURNS_MAX} turns")


def _counted(counter: Results, outcomes: list[JsonObject]) -> JsonObject:
    for outcome in outcomes:
        counter.add(json.loads(json.dumps(outcome)), "an outcome")
    return counter.report()


def assert_same(one: Conversation, other: Conversation, what: str) -> None:
    """Two conversations are in the same state, with the same record and outcome."""
    assert one.fingerprint() == other.fingerprint(), f"{what}: another state"
    assert one.record() == other.record(), f"{what}: another record"
    assert one.outcome == other.outcome, f"{what}: another outcome"


def assert_json(value: object, what: str) -> None:
    """A value that JSON can hold, and that is the same when it is read back."""
    assert json.loads(json.dumps(value, allow_nan=False)) == value, f"{what}: not what JSON gives back"


def assert_shown(results: ResultsSpec, report: JsonObject) -> None:
    """Lines, tables and figures of a summary; none of a summary without the sections."""
    for name, value in results.lines(report):
        assert isinstance(name, str), name
        assert isinstance(value, str), value
    for part in results.tables(report):
        if not isinstance(part, str):
            width = len(part.words) + len(part.numbers)
            assert all(len(row) == width for row in part.rows), f"table {part.title!r}: rows are not {width} cells wide"
            assert all(isinstance(cell, str) for row in part.rows for cell in row), f"table {part.title!r}: not text"
    for name, figure in results.figures(report).items():
        ends = (figure.lo, figure.value, figure.hi)
        assert None in ends or sorted(ends) == [*ends], f"figure {name!r}: {ends}"  # type: ignore[type-var]
    assert not [*results.lines({}), *results.tables({}), *results.figures({})], "shown without being counted"


def assert_read(results: ResultsSpec, conversation: Conversation) -> None:
    """What `show` adds to the text of a conversation."""
    outcome, record = conversation.outcome or {}, conversation.record()
    assert all(isinstance(line, str) for line in results.ending(outcome))
    truth, events = results.truth(record), record.get("events")
    for place, event in enumerate(events if truth is not None and isinstance(events, list) else []):
        if truth is not None and isinstance(event, dict):
            assert all(isinstance(line, str) for line in (*truth.before(event), *truth.after(place)))
