"""What an environment promises, each with how it is tried and what to do when it is broken.

The contract suite (`mac_runner.testing.environments`) and `mac-run check` try the same promises. A promise that is
broken raises BrokenPromiseError. Nothing else of the package runs: no engine, no scheduler, no disk.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, NamedTuple, NoReturn, TypeAlias

from mac_runner.environments.base import Conversation, Environment
from mac_runner.environments.replay import replay
from mac_runner.errors import ConfigError, ConversationError
from mac_runner.measures import ResultsSpec
from mac_runner.results import Results
from mac_runner.testing import spy
from mac_runner.testing.replies import GARBAGE, copied_forms, hostile_reply, usable_reply
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

TURNS_MAX: Final = 50_000
"""No conversation of a contract test is longer, unless a subject says otherwise."""
_SUMMARY_KEYS: Final = frozenset(
    [
        *("format", "experiment_name", "conversations", "turns", "corrections", "defaults", "unusable", "tokens"),
        "turns_by_definition",
        *("sessions", "merged_runs", "wall_s", "played_s", "turns_per_s", "conversations_per_s", "models", "failures"),
        *("parts", "retried"),
    ]
)
Answer: TypeAlias = Callable[[Turn, Prompt], Reply]


class BrokenPromiseError(AssertionError):
    """An environment broke a promise: the text says how, and in which conversation."""


class Played(NamedTuple):
    """An ended conversation, the replies that it was given in their order, and the turns that they answered."""

    conversation: Conversation
    replies: list[RecordedReply]
    turns: list[Turn]
    failure: str | None
    """Why it failed; None for one that ended."""


@dataclass(kw_only=True)
class Subject:
    """The environment that is tried, and how."""

    build: Callable[[], Environment]
    """Sets it up, each time from scratch."""
    tasks: tuple[Task, ...]
    """The conversations to play."""
    kind: str
    """The `kind` of its outcomes."""
    policy: str | None
    """The scripted player that ends every conversation; None: replies drawn from the form of each prompt."""
    results: ResultsSpec | None = None
    stops: int = 4
    """About as many places a conversation is stopped at and resumed."""
    turns_max: int = TURNS_MAX
    """A conversation with more turns does not end."""
    code: Path | None = None
    """Where the environment's own code is; None where that is not known."""
    place: str = field(default="", init=False)
    """The conversation and turn in progress."""
    on_step: Callable[[], None] = lambda: None
    """Called before each turn."""

    def __post_init__(self) -> None:
        self.environment = self.build()
        self.is_own = None if self.code is None else spy.own_files(self.code)

    def open(self, task: Task, environment: Environment | None = None) -> Conversation:
        """A new conversation."""
        self.place = f"conversation {task.task_id}, at its beginning"
        self.on_step()
        return (environment or self.environment).open(task)

    def player(self, task: Task) -> Answer:
        """Usable replies; each depends on its turn and on what is visible to it."""
        act = None if self.policy is None else self.environment.policy(self.policy)

        def answer(turn: Turn, prompt: Prompt) -> Reply:
            random = Random(stable_hash(task.seed, turn.key))
            return Reply(text=usable_reply(prompt, random) if act is None else act(prompt.view, random))

        return answer

    def careless_player(self, task: Task) -> Answer:
        """Usable replies, and now and then one that is of no use."""
        answer = self.player(task)

        def careless(turn: Turn, prompt: Prompt) -> Reply:
            number = stable_hash("garbage", turn.key)
            reply = answer(turn, prompt)
            return Reply(text=hostile_reply(reply.text, Random(number))) if number % 7 == 0 else reply

        return careless

    def play(self, task: Task, answer: Answer | None = None, *, order: Random | None = None) -> Played:
        """Play a conversation to its end, open turns in their own order or in a random one."""
        return self.played_on(task, self.open(task), answer or self.player(task), order)

    def played_on(self, task: Task, conversation: Conversation, answer: Answer, order: Random | None) -> Played:
        """The conversation played from where it is to its end, or to a failure."""
        replies: list[RecordedReply] = []
        turns: list[Turn] = []
        for turn in self.steps(task, conversation, order):
            try:
                prompt = conversation.prompt(turn)
                reply = answer(turn, prompt)
                replies.append(RecordedReply(turn_key=turn.key, prompt_sha256=prompt.sha256, reply=reply))
                turns.append(turn)
                receipt = conversation.receive(turn, reply)
            except ConversationError as fault:
                return Played(conversation, replies, turns, str(fault))
            if receipt.kind is ReceiptKind.FAILURE:
                return Played(conversation, replies, turns, receipt.detail)
        return Played(conversation, replies, turns, None)

    def steps(self, task: Task, conversation: Conversation, order: Random | None) -> Iterator[Turn]:
        """The turn to be answered next, until none is open; the caller answers it."""
        rounds = conversation.rounds_completed
        for number in range(self.turns_max):
            self.place = f"conversation {task.task_id}, after {number} turns"
            self.on_step()
            turns = conversation.turns()
            if not turns:
                return
            if conversation.outcome is not None:
                self.broken("it has an outcome although turns are open")
            if conversation.rounds_completed < rounds:
                self.broken(f"{rounds} rounds were completed, and now {conversation.rounds_completed}")
            rounds = conversation.rounds_completed
            waiting = {(turn.round, turn.agent) for turn in turns}
            free = [turn for turn in turns if not {(turn.round, agent) for agent in turn.after} & waiting]
            if not free:
                self.broken(f"these turns wait for each other: {', '.join(turn.key for turn in turns)}")
            turn = free[0] if order is None else order.choice(free)
            self.place = f"conversation {task.task_id}, turn {turn.key}"
            yield turn
        self.broken(f"it has not ended after {self.turns_max} turns")

    def broken(self, what: str) -> NoReturn:
        """Raise that a promise is broken, where the conversation is now."""
        raise BrokenPromiseError(f"{self.place}: {what}")

    def same(self, one: Conversation, other: Conversation, what: str) -> None:
        """Two conversations are in the same state, with the same record and outcome."""
        for name, first, second in (
            ("outcome", one.outcome, other.outcome),
            ("record", one.record(), other.record()),
            ("state (fingerprint)", one.fingerprint(), other.fingerprint()),
        ):
            if first != second:
                self.broken(f"{what}, it has another {name}{_difference(first, second)}")

    def json(self, value: object, what: str) -> None:
        """A value that JSON can hold, and that is the same when it is read back."""
        try:
            is_same = json.loads(json.dumps(value, allow_nan=False)) == value
        except (TypeError, ValueError) as fault:
            raise BrokenPromiseError(f"{self.place}: its {what} cannot be written as JSON: {fault}") from None
        if not is_same:
            self.broken(
                f"its {what} is another when it is read back from JSON; write keys as texts and tuples as lists"
            )


class Promise(NamedTuple):
    """One promise."""

    name: str
    text: str
    """What holds, in a sentence."""
    remedy: str
    """What to do where it is broken."""
    check: Callable[[Subject], None]
    """Tries it. Raises BrokenPromiseError, or what the environment raises."""


def _ends(subject: Subject, task: Task) -> None:
    played = subject.play(task)
    outcome = played.conversation.outcome
    if played.failure is not None:
        subject.broken(f"it fails with the replies of {_player(subject)}: {played.failure}")
    if outcome is None:
        subject.broken("no turn is open, and it has no outcome")
    if outcome.get("kind") != subject.kind:
        subject.broken(f"the outcome has the kind {outcome.get('kind')!r}, not {subject.kind!r}")
    subject.json(outcome, "outcome")


def _turns(subject: Subject, task: Task) -> None:
    models = {agent.agent_id: agent.model for agent in task.agents}
    keys: set[str] = set()
    usable = subject.player(task)

    def answer(turn: Turn, prompt: Prompt) -> Reply:
        if turn.agent not in models:
            subject.broken(f"the turn is of no agent; there are {', '.join(models)}")
        if turn.model != models[turn.agent]:
            subject.broken(f"the turn goes to the model {turn.model!r}; the agent has {models[turn.agent]!r}")
        if turn.key in keys:
            subject.broken("this turn was answered before; give each its own round, step or attempt")
        keys.add(turn.key)
        return usable(turn, prompt)

    subject.play(task, answer)


def _prompts(subject: Subject, task: Task) -> None:
    usable = subject.player(task)

    def answer(turn: Turn, prompt: Prompt) -> Reply:
        if not prompt.messages:
            subject.broken("the prompt has no message")
        for message in prompt.messages:
            if not _is_text(message.content):
                subject.broken(f"a message of the prompt is {message.content!r:.60}, not a text")
            if message.content.encode("utf-8", "replace") != message.content.encode("utf-8", "surrogatepass"):
                subject.broken("the prompt holds half of a surrogate pair, which no engine takes")
        if prompt.schema is not None:
            subject.json(dict(prompt.schema), "schema")
        if prompt.choices is not None and (not prompt.choices or not all(map(_is_text, prompt.choices))):
            subject.broken(f"the choices of the prompt are {prompt.choices!r:.60}; each is a text that is not empty")
        return usable(turn, prompt)

    subject.play(task, answer)


def _again(subject: Subject, task: Task) -> None:
    first = subject.play(task)
    environment = subject.build()
    again = subject.played_on(task, subject.open(task, environment), subject.player(task), None)
    for one, other in zip(first.replies, again.replies, strict=False):
        if one != other:
            subject.place = f"conversation {task.task_id}, turn {one.turn_key}"
            what = "prompt" if one.turn_key == other.turn_key else f"turn ({other.turn_key})"
            subject.broken(f"played again with the same replies, it has another {what}")
    if len(first.replies) != len(again.replies):
        subject.broken(f"played again, it has {len(again.replies)} turns, not {len(first.replies)}")
    subject.same(first.conversation, again.conversation, "played again")


def _order(subject: Subject, task: Task) -> None:
    first, other = subject.play(task), subject.play(task, order=Random(task.index))
    subject.same(first.conversation, other.conversation, "with open turns answered in another order")


def _unchanged(subject: Subject, task: Task) -> None:
    answer = subject.player(task)
    conversation = subject.open(task)
    for turn in subject.steps(task, conversation, None):
        before, events = conversation.fingerprint(), conversation.record()
        prompt = conversation.prompt(turn)
        if conversation.fingerprint() != before or conversation.record() != events:
            subject.broken("asking for the prompt changed the state")
        if conversation.prompt(turn).sha256 != prompt.sha256:
            subject.broken("the prompt is another when it is asked for twice")
        conversation.receive(turn, answer(turn, prompt))


def _replayed(subject: Subject, task: Task) -> None:
    for answer in (subject.player(task), subject.careless_player(task)):
        played = subject.play(task, answer, order=Random(-task.index - 1))
        rebuilt = subject.open(task)
        found = replay(rebuilt, played.replies, check_prompts=True)
        if found.changed_prompts:
            subject.place = f"conversation {task.task_id}, turn {found.changed_prompts[0]}"
            subject.broken("replayed from its recorded replies, it has another prompt")
        subject.same(played.conversation, rebuilt, "replayed from its recorded replies")
        if played.failure is not None:
            continue
        pairs = sorted(zip(played.turns, played.replies, strict=True), key=lambda pair: pair[0].canonical)
        again = subject.open(task)
        replay(again, [reply for _, reply in pairs])
        subject.same(played.conversation, again, "replayed in the order of a transcript")


def _resumed(subject: Subject, task: Task) -> None:
    answer = subject.careless_player(task)
    played = subject.play(task, answer, order=Random(-task.index - 1))
    if played.failure is not None:
        answer = subject.player(task)
        played = subject.play(task, answer, order=Random(-task.index - 1))
    count = len(played.replies)
    for stop in sorted({0, 1, *(count * part // subject.stops for part in range(1, subject.stops)), count - 1}):
        resumed = subject.open(task)
        replay(resumed, played.replies[:stop])
        subject.played_on(task, resumed, answer, None)
        subject.same(played.conversation, resumed, f"stopped after {stop} replies and resumed")


def _garbage(subject: Subject, task: Task) -> None:
    subject.play(task, lambda turn, _prompt: Reply(text=GARBAGE[stable_hash(turn.key) % len(GARBAGE)]))
    subject.play(task, subject.careless_player(task))
    usable = subject.player(task)

    def hostile(turn: Turn, prompt: Prompt) -> Reply:
        return Reply(text=hostile_reply(usable(turn, prompt).text, Random(stable_hash("hostile", task.seed, turn.key))))

    subject.play(task, hostile)


def _copied(subject: Subject, task: Task) -> None:
    conversation, usable = subject.open(task), subject.player(task)
    for turn in subject.steps(task, conversation, None):
        prompt = conversation.prompt(turn)
        copies = [] if turn.attempt else copied_forms(prompt)
        copy = copies[stable_hash(turn.key) % len(copies)] if copies else None
        receipt = conversation.receive(turn, usable(turn, prompt) if copy is None else Reply(text=copy))
        if copy is not None and receipt.kind is ReceiptKind.ACT:
            subject.broken(f"a copy of its own form counts as an answer: {copy!r:.80}")
        if receipt.kind is ReceiptKind.FAILURE:
            return


def _overflow(subject: Subject, task: Task) -> None:
    usable = subject.player(task)

    for every in (1, 5):

        def answer(turn: Turn, prompt: Prompt, every: int = every) -> Reply:
            is_long = not turn.attempt and stable_hash("overflow", turn.key) % every == 0
            return Reply(text="", finish_reason=FinishReason.OVERFLOW) if is_long else usable(turn, prompt)

        subject.play(task, answer)


def _record(subject: Subject, task: Task) -> None:
    played = subject.play(task, subject.careless_player(task))
    record, answered = played.conversation.record(), {turn.key for turn in played.turns}
    agents = {agent.agent_id for agent in task.agents}
    events = record.get("events", [])
    subject.json(record, "record")
    if not isinstance(events, list):
        subject.broken(f"the events of its record are {type(events).__name__}, not a list")
    for number, event in enumerate(events):
        if not isinstance(event, dict) or not {"when", "text", "audience", "data"} <= event.keys():
            subject.broken(f"event {number} of its record lacks one of when, text, audience, data: {event!r:.80}")
        audience = event["audience"]
        if audience != "all" and not (isinstance(audience, list) and {*map(str, audience)} <= agents):
            subject.broken(f"event {number} of its record has the audience {audience!r}; there are {', '.join(agents)}")
        if (turn := event.get("turn")) is not None and turn not in answered:
            subject.broken(f"event {number} of its record is of the turn {turn!r}, which was not answered before it")


def _apart(subject: Subject, task: Task) -> None:
    """Two conversations that are played in turns are what each is alone."""
    other = subject.tasks[(subject.tasks.index(task) + 1) % len(subject.tasks)]
    alone = [
        subject.played_on(one, subject.open(one, subject.build()), subject.player(one), None) for one in (task, other)
    ]
    environment = subject.build()
    together = [subject.open(one, environment) for one in (task, other)]
    waiting = [
        (one, conversation, subject.player(one), subject.steps(one, conversation, None))
        for one, conversation in zip((task, other), together, strict=True)
    ]
    while waiting:
        for entry in list(waiting):
            one, conversation, answer, steps = entry
            turn = next(steps, None)
            if turn is None:
                waiting.remove(entry)
            else:
                conversation.receive(turn, answer(turn, conversation.prompt(turn)))
    for one, played, conversation in zip((task, other), alone, together, strict=True):
        subject.place = f"conversation {one.task_id}"
        subject.same(played.conversation, conversation, "played in turns with another conversation")


def _alone(subject: Subject, task: Task) -> None:
    if subject.is_own is None:
        return
    usable = subject.player(task)
    with spy.uses(subject.is_own) as found:
        subject.play(task, usable)
    if found:
        places = "; ".join(f"{use.where}: {use.what} {use.flaw}" for use in found)
        subject.place = f"conversation {task.task_id}"
        subject.broken(places)


def _policies(subject: Subject) -> None:
    try:
        subject.environment.policy("no such policy")
    except ConfigError as fault:
        if "no such policy" not in str(fault) or (subject.policy or "") not in str(fault):
            subject.broken(f"the error for an unknown policy names neither it nor those there are: {fault}")
    else:
        subject.broken("an unknown policy is not refused")


def _results(subject: Subject) -> None:
    if (results := subject.results) is None:
        return
    ended = [subject.play(task).conversation for task in subject.tasks]
    outcomes = [each.outcome for each in ended if each.outcome is not None]
    report = _counted(results.counter(), outcomes)
    if report != _counted(results.counter(), outcomes[::-1]):
        subject.broken("the order of outcomes changes the report")
    if not report:
        subject.broken("nothing was reported")
    if strangers := report.keys() & _SUMMARY_KEYS:
        subject.broken(f"the report has sections of others: {', '.join(sorted(strangers))}")
    subject.json(report, "report")
    _assert_shown(results, report)
    for conversation in ended:
        _assert_read(results, conversation)


def _each(check: Callable[[Subject, Task], None]) -> Callable[[Subject], None]:
    """A check of one conversation, over all."""

    def check_all(subject: Subject) -> None:
        for task in subject.tasks:
            check(subject, task)

    return check_all


PROMISES: Final = (
    Promise(
        "ends",
        "a conversation ends with an outcome",
        "return the outcome, as a dict of numbers and texts, from every path; bound every loop that asks",
        _each(_ends),
    ),
    Promise(
        "turns",
        "turns have keys of their own and agents of the task",
        "make turns from the agents of the task, and count `round`, `step` or `attempt` up with each reply",
        _each(_turns),
    ),
    Promise(
        "prompts",
        "every prompt can be sent",
        "send texts; pass what models wrote through `defuse` (mac_runner.environments.markup)",
        _each(_prompts),
    ),
    Promise(
        "outside",
        "nothing is read from outside: no clock, chance, file, network, process",
        "derive all from the task, the settings and the replies",
        _each(_alone),
    ),
    Promise(
        "deterministic",
        "the same replies lead to the same conversation",
        "draw chance from the task's seed; keep nothing in module-level or class-level variables; sort sets",
        _each(_again),
    ),
    Promise(
        "apart",
        "conversations share no state",
        "keep state in the conversation (local variables of a generator), not in the module, class or settings",
        _each(_apart),
    ),
    Promise(
        "order",
        "the order in which open turns are answered leaves no trace",
        "gather the answers by agent, and act on them in the order of the seats when the last one is there",
        _each(_order),
    ),
    Promise(
        "prompt",
        "asking for a prompt changes nothing",
        "change the state in `receive` alone; a verify asks for prompts again",
        _each(_unchanged),
    ),
    Promise(
        "replay",
        "a replay of the replies leads to the same conversation",
        "let the state depend on the task and the replies alone",
        _each(_replayed),
    ),
    Promise(
        "resume",
        "a conversation can be stopped after any reply and resumed",
        "let the state depend on the task and the replies alone",
        _each(_resumed),
    ),
    Promise(
        "garbage",
        "garbage is corrected, replaced or fails its conversation",
        "check each reply before it is used; give `Ask` choices or a pydantic model, and a default that can be used",
        _each(_garbage),
    ),
    Promise(
        "copied",
        "a copy of what the form shows is no answer",
        'show "..." in forms, and refuse it with `is_placeholder` (mac_runner.environments.reading)',
        _each(_copied),
    ),
    Promise(
        "overflow",
        "a prompt that is too long is shortened or fails its conversation",
        "answer FinishReason.OVERFLOW with a shorter attempt, or with a receipt of kind FAILURE",
        _each(_overflow),
    ),
    Promise(
        "record",
        "the record is JSON, and its audiences are agents",
        "give each event when, text, audience and data; name agents by their agent_id",
        _each(_record),
    ),
    Promise(
        "policies",
        "an unknown scripted player is refused by name",
        "raise ConfigError that names the players there are",
        _policies,
    ),
    Promise(
        "results",
        "results depend on no order and can be shown",
        "count sums only, and report nothing of a summary without the own sections",
        _results,
    ),
)


def prefix_share(subject: Subject) -> float | None:
    """How much of each prompt of a seat is the beginning of the seat's one before; None without two prompts of one."""
    shared = total = 0
    for task in subject.tasks:
        last: dict[str, str] = {}
        usable = subject.player(task)

        def answer(turn: Turn, prompt: Prompt, last: dict[str, str] = last, usable: Answer = usable) -> Reply:
            nonlocal shared, total
            text = "\x1e".join(message.content for message in prompt.messages)
            if (before := last.get(turn.agent)) is not None:
                shared += _common(before, text)
                total += len(text)
            last[turn.agent] = text
            return usable(turn, prompt)

        subject.play(task, answer)
    return shared / total if total else None


def _common(one: str, other: str) -> int:
    """With how many equal characters two texts begin."""
    lo, hi = 0, min(len(one), len(other))
    while lo < hi:
        middle = (lo + hi + 1) // 2
        lo, hi = (middle, hi) if one[:middle] == other[:middle] else (lo, middle - 1)
    return lo


def _is_text(value: object) -> bool:
    """Whether a plug-in gave a text where its types say so."""
    return isinstance(value, str) and bool(value)


def _player(subject: Subject) -> str:
    return "the check's own player" if subject.policy is None else f"the scripted player {subject.policy!r}"


def _difference(first: object, second: object) -> str:
    """The first place at which two JSON values differ, in words."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in [*first, *second]:
            if first.get(key) != second.get(key):
                return f", at {key}{_difference(first.get(key), second.get(key))}"
    if isinstance(first, list) and isinstance(second, list):
        for number, (one, other) in enumerate(zip(first, second, strict=False)):
            if one != other:
                return f" {number}{_difference(one, other)}"
        return f": {len(second)} instead of {len(first)}"
    return f": {second!r:.60} instead of {first!r:.60}"


def _counted(counter: Results, outcomes: list[JsonObject]) -> JsonObject:
    for outcome in outcomes:
        counter.add(json.loads(json.dumps(outcome)), "an outcome")
    return counter.report()


def _assert_shown(results: ResultsSpec, report: JsonObject) -> None:
    """Headline, lines, tables and figures of a summary; none of a summary without the sections."""
    assert isinstance(results.headline(report, {}), str), "headline: not text"
    assert results.headline({}, {}) == "", "headline: said without being counted"
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


def _assert_read(results: ResultsSpec, conversation: Conversation) -> None:
    """What `show` adds to the text of a conversation."""
    outcome, record = conversation.outcome or {}, conversation.record()
    assert all(isinstance(line, str) for line in results.ending(outcome))
    truth, events = results.truth(record), record.get("events")
    for place, event in enumerate(events if truth is not None and isinstance(events, list) else []):
        if truth is not None and isinstance(event, dict):
            assert all(isinstance(line, str) for line in (*truth.before(event), *truth.after(place)))
