"""The RequestScheduler: which turn departs when, as a pure state machine.

`handle(event)` is its only mutator and returns the actions to perform. It has no engines, prompts, tasks, disks,
asyncio or clock: the caller passes the time. An event costs O(open turns of its conversation + log n). Its effects on
the turn it names, and on the other turns of that conversation:

    event           from          to                                              other turns
    --------------  ------------  ----------------------------------------------  -----------------------------------
    Opened          -             READY, or BLOCKED while an agent it waits for   -
                                  has an open turn in its round
    Answered        IN_FLIGHT     gone                                            new ones as Opened; BLOCKED to READY;
                                                                                  vanished ones gone
    Faulted, delay  IN_FLIGHT     BACKING_OFF, with RetryLater                    -
    Faulted, None   IN_FLIGHT     gone; the conversation fails here               later ones gone; those in flight stay
    Broken          IN_FLIGHT     gone; the conversation fails before all turns   all gone; those in flight stay
    RetryDue        BACKING_OFF   READY or BLOCKED                                -
    Resized         -             -                                               those in flight stay
    (any event)     READY         IN_FLIGHT, with Depart, while slots are free    -

Any other pair raises InvalidTransition with the story of the conversation, except a RetryDue for a turn that is gone.

Promises:
- a turn departs only when it is wanted, when no agent it waits for has an open turn in its round, and when its engine
  and the run as a whole have a free slot; among those that may, the least priority departs (`pools.Entry`);
- the heads of all engines are compared, so a full engine never blocks another;
- an engine with a token budget gets no more than its tokens allow (`pools.ModelPool`);
- a turn that engines died on departs after all others, alone on its engine; where the engine isolates it on one of its
  servers, others go on, and one such turn is in flight at a time;
- an engine that shrinks keeps what is in flight, and gets no more until that is less than it serves;
- an engine that turns requests away gets what it takes (`engine_policy.ConcurrencyLimit`);
- a slot is held from Depart to Answered or Faulted and at no other time;
- conversations are opened when a slot is free that no ready turn can fill, and at most
  OPEN_CONVERSATIONS_PER_SLOT_MAX per slot;
- a failed conversation takes only its own turns with it. Turns before the failed one (`Turn.canonical`) still run, so
  how far a failed conversation got does not depend on how many requests ran at once;
- a conversation is settled, not left waiting, if none of its turns can ever start.

What a run is given: the conversations to play, and where results go.

A run may pool several experiments over the same engines. What differs between them is a `Source`; conversations of all
sources are numbered in the order in which they are taken. The store's RunRecorder is a `Recorder`; a test's list of
calls is another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias, assert_never

from msgspec import Struct, field

from mac_runner.environments.base import Environment
from mac_runner.errors import StoreError
from mac_runner.scheduler.pools import (
    BEFORE_ALL,
    OPEN_CONVERSATIONS_PER_SLOT_MAX,
    Entry,
    HeldTurn,
    ModelPool,
    Needs,
    OpenConversation,
    Place,
    Pools,
    PoolSnapshot,
    Stage,
    snapshot_of,
    validate_pools,
)
from mac_runner.spec import RetryConfig
from mac_runner.types import JsonObject, PolicyVersion, RecordedReply, Task, Turn

STORY_EVENTS_MAX: Final = 2_000
"""Events and actions kept for the story of an error."""


class ModelReady(Struct, frozen=True):
    """An engine is up."""

    model: str
    capacity: int
    """Requests it serves at once."""
    token_budget: int | None = None
    """Tokens of all requests at once that its KV cache holds; None: unbounded."""
    lookahead: int = 0
    """Further requests that it gets, which wait inside it."""
    isolates: bool = False
    """Whether it serves a suspect alone on one of its servers, while others go on."""


class Resized(Struct, frozen=True):
    """An engine serves another number of requests from now on. With 0 its turns wait."""

    model: str
    capacity: int
    lookahead: int = 0
    isolates: bool = False


class Opened(Struct, frozen=True):
    """The conversation that Open requested. Without turns it is over already."""

    conversation: int
    """Its number in the run."""
    turns: Sequence[Turn]
    rounds_completed: int
    failed_at: Place | None = None
    """Where it failed in an earlier session."""
    needs: Needs = field(default_factory=dict)
    engines: Mapping[str, str] = field(default_factory=dict)
    """The engine of each model; a model that is missing is served by the engine of its own name."""
    suspects: frozenset[str] = frozenset()
    """Keys of turns that engines died on in earlier sessions."""


class TasksExhausted(Struct, frozen=True):
    """No task is left to open."""


class Answered(Struct, frozen=True):
    """The reply to `turn` was applied. Without turns the conversation is over."""

    conversation: int
    turn: Turn
    turns: Sequence[Turn]
    """All turns open now."""
    rounds_completed: int
    needs: Needs = field(default_factory=dict)


class Faulted(Struct, frozen=True):
    """The engine did not answer `turn`."""

    conversation: int
    turn: Turn
    delay_s: float | None
    """Seconds until it is sent again; None: never, the conversation fails."""
    is_suspect: bool = False
    """Whether it is sent again after all others, alone on its engine."""
    is_turned_away: bool = False
    """Whether the engine works, and had no room for it."""


class Broken(Struct, frozen=True):
    """The reply to `turn` was applied, and the environment failed to say what the conversation wants next."""

    conversation: int
    turn: Turn


class RetryDue(Struct, frozen=True):
    """The pause before the next sending of `turn` is over."""

    conversation: int
    turn: Turn


class RestOver(Struct, frozen=True):
    """The rest of an engine is over."""

    model: str


class Stop(Struct, frozen=True):
    """No further departures, no further opening; an Open without an answer is withdrawn."""


Event: TypeAlias = (
    ModelReady | Resized | Opened | TasksExhausted | Answered | Faulted | Broken | RetryDue | RestOver | Stop
)


class Open(Struct, frozen=True):
    """Open the next task and answer with Opened or TasksExhausted. One at a time is outstanding."""


class Depart(Struct, frozen=True):
    """Render the prompt of `turn` and send it."""

    conversation: int
    turn: Turn
    sending: int
    """How many times it was sent, this one included."""
    waited_s: float
    """How long it was ready."""
    is_isolated: bool = False
    """Whether engines died on it, and its engine is to serve it alone on one of its servers."""


class RetryLater(Struct, frozen=True):
    """Answer with RetryDue in `delay_s` seconds."""

    conversation: int
    turn: Turn
    delay_s: float


class Rest(Struct, frozen=True):
    """Answer with RestOver in `delay_s` seconds. One at a time is outstanding for an engine."""

    model: str
    delay_s: float


class Settle(Struct, frozen=True):
    """Publish the conversation: it is over or stuck, and nothing of it is in flight."""

    conversation: int


class Finished(Struct, frozen=True):
    """All work is done, or the scheduler was stopped and nothing is in flight any more."""


Action: TypeAlias = Open | Depart | RetryLater | Rest | Settle | Finished


class InvalidTransition(RuntimeError):  # noqa: N818 - its usual name
    """An event that cannot happen in this state: a bug in the caller or in an environment."""

    def __init__(self, what: str, story: Sequence[object]) -> None:
        super().__init__("\n  ".join([what, *map(str, story)]))
        self.story = tuple(story)


class RequestScheduler:
    """The three pools and the rules by which turns move between them."""

    def __init__(self, concurrency: int | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
        self._concurrency = concurrency
        self._pools = Pools()
        self._slots = 0
        self._slots_max = 0
        self._in_flight_max = 0
        """An upper bound of what may be in flight; the pools know more exactly."""
        self._tasks_remain = True
        self._open_outstanding = False
        self._stopped = False
        self._finished = False
        self._log: deque[Event | Action] = deque(maxlen=STORY_EVENTS_MAX)

    @property
    def slots(self) -> int:
        """How many requests may be in flight at once, all models together."""
        return self._slots

    @property
    def is_open_wanted(self) -> bool:
        """Whether an Open is outstanding."""
        return self._open_outstanding

    @property
    def is_done(self) -> bool:
        """Whether no task is left to open and no conversation is open."""
        return not (self._tasks_remain or self._open_outstanding or self._pools.conversations)

    @property
    def in_flight(self) -> int:
        """How many requests are in flight."""
        return self._pools.in_flight

    def effective_capacity(self, model: str) -> int:
        """How many requests `model` serves at once now: its capacity, or what its tokens and its limit allow."""
        return self._pools.model(model).effective_capacity

    def waiting(self, model: str) -> int:
        """How many turns wait for a slot of `model`."""
        return self._pools.model(model).ready

    def turns_in_flight(self, engine: str) -> list[tuple[int, Turn]]:
        """The turns in flight on `engine`, with their conversations; O(open turns)."""
        return [
            (conversation.index, held.turn)
            for conversation in self._pools.conversations.values()
            for held in conversation.turns.values()
            if held.stage is Stage.IN_FLIGHT and held.engine == engine
        ]

    @property
    def open_conversations(self) -> int:
        """How many conversations are open."""
        return len(self._pools.conversations)

    def handle(self, event: Event, now_s: float = 0.0) -> list[Action]:
        """Apply one event that happened at `now_s`; the actions are performed in their order."""
        self._log.append(event)
        actions: list[Action] = []
        match event:
            case Answered():
                self._answered(event, actions, now_s)
            case Faulted():
                self._faulted(event, actions, now_s)
            case Broken():
                self._fail(self._land(event.conversation, event.turn).conversation, BEFORE_ALL, actions)
            case Opened():
                self._opened(event, actions, now_s)
            case RetryDue():
                self._retry_due(event, now_s)
            case RestOver():
                self._pools.model(event.model).is_resting = False
            case ModelReady():
                self._pools.model(event.model).token_budget = event.token_budget
                self._resize(event)
            case Resized():
                self._resize(event)
            case TasksExhausted():
                self._tasks_remain = self._open_outstanding = False
            case Stop():
                self._stopped, self._open_outstanding = True, False
            case _:
                assert_never(event)
        self._depart(actions, now_s)
        self._open_more(actions)
        self._finish(actions)
        self._log.extend(actions)
        return actions

    def snapshot(self, rows: int) -> PoolSnapshot:
        """The pools now, with the first `rows` ready and blocked turns; O(rows log rows)."""
        return snapshot_of(self._pools, self._slots, rows)

    def story(self, conversation: int) -> tuple[Event | Action, ...]:
        """The events and actions of one conversation that the bounded log still holds."""
        return tuple(entry for entry in self._log if getattr(entry, "conversation", None) == conversation)

    def validate(self) -> None:
        """Re-derive every invariant from scratch. Raises AssertionError with the latest events."""
        try:
            validate_pools(self._pools, slots=self._slots, slots_max=self._slots_max, concurrency=self._concurrency)
            assert not (self._finished and self._pools.in_flight), "finished with requests in flight"
        except AssertionError as broken:
            raise AssertionError("\n  ".join([str(broken), *map(str, list(self._log)[-20:])])) from None

    def _resize(self, event: ModelReady | Resized) -> None:
        self._pools.model(event.model).resize(event.capacity, event.lookahead, isolates=event.isolates)
        pools = self._pools.models.values()
        limit, overhang = sum(pool.limit for pool in pools), sum(pool.overhang for pool in pools)
        bound = math.inf if self._concurrency is None else self._concurrency
        self._slots, self._in_flight_max = int(min(bound, limit)), int(min(bound, limit + overhang))
        self._slots_max = max(self._slots_max, self._slots)

    def _opened(self, event: Opened, actions: list[Action], now_s: float) -> None:
        if event.conversation in self._pools.conversations:
            raise self._invalid(event.conversation, "was opened twice")
        self._open_outstanding = False
        conversation = OpenConversation(
            event.conversation,
            failed_at=event.failed_at,
            needs=event.needs,
            suspects=event.suspects,
            engines=event.engines,
        )
        self._pools.conversations[event.conversation] = conversation
        self._adopt(conversation, event.turns, event.rounds_completed, now_s)
        self._settle_if_over(conversation, actions)

    def _answered(self, event: Answered, actions: list[Action], now_s: float) -> None:
        held = self._land(event.conversation, event.turn)
        self._pools.model(held.engine).answered()
        held.conversation.needs = event.needs
        self._adopt(held.conversation, event.turns, event.rounds_completed, now_s)
        self._settle_if_over(held.conversation, actions)

    def _faulted(self, event: Faulted, actions: list[Action], now_s: float) -> None:
        held = self._land(event.conversation, event.turn)
        conversation, turn = held.conversation, held.turn
        if event.is_turned_away:
            rest_s = self._pools.model(held.engine).turned_away(held, event.delay_s)
            if rest_s > 0:
                actions.append(Rest(held.engine, rest_s))
        if event.delay_s is None:
            self._fail(conversation, turn.canonical, actions)
            return
        if conversation.wants(turn):
            conversation.turns[turn.key] = held
            held.is_suspect = held.is_suspect or event.is_suspect
            self._pools.move(held, Stage.BACKING_OFF, now_s)
            actions.append(RetryLater(event.conversation, turn, event.delay_s))
        self._settle_if_over(conversation, actions)

    def _fail(self, conversation: OpenConversation, place: Place, actions: list[Action]) -> None:
        conversation.failed_at = place if conversation.failed_at is None else min(conversation.failed_at, place)
        for held in list(conversation.turns.values()):
            if not conversation.wants(held.turn):
                self._drop(held)
        self._settle_if_over(conversation, actions)

    def _retry_due(self, event: RetryDue, now_s: float) -> None:
        # The turn may be gone by now: its conversation failed meanwhile, or the turn vanished.
        conversation = self._pools.conversations.get(event.conversation)
        held = conversation.turns.get(event.turn.key) if conversation else None
        if held is not None and held.stage is Stage.BACKING_OFF:
            self._place(held, now_s)

    def _land(self, index: int, turn: Turn) -> HeldTurn:
        """Free the slot of a turn in flight and forget the turn."""
        conversation = self._pools.conversations.get(index)
        held = conversation.turns.get(turn.key) if conversation else None
        if conversation is None or held is None or held.stage is not Stage.IN_FLIGHT:
            raise self._invalid(index, f"turn {turn.key} came back, and it was not in flight")
        self._pools.move(held, None)
        del conversation.turns[turn.key]
        return held

    def _adopt(self, conversation: OpenConversation, turns: Sequence[Turn], rounds: int, now_s: float) -> None:
        """Bring the held turns in line with those open now: hold new ones, drop vanished ones, place the waiting."""
        before, after = conversation.turns, {}
        moved_on = rounds != conversation.rounds_completed
        conversation.rounds_completed = rounds
        conversation.speaking = _speaking(turns)
        for turn in turns:
            if not conversation.wants(turn):
                continue
            key = turn.key
            held = before.pop(key, None)
            if held is None:
                held = conversation.hold(turn)
            if key in after:
                raise self._invalid(conversation.index, f"turn {key} is open twice")
            after[key] = held
            if held.stage is None or held.stage is Stage.BLOCKED or held.stage is Stage.READY:
                self._refresh(held, turn, now_s, moved_on=moved_on)
        conversation.turns = after | before
        for held in before.values():
            self._drop(held)

    def _refresh(self, held: HeldTurn, turn: Turn, now_s: float, *, moved_on: bool) -> None:
        # The same key with another `after` or model: it was never sent, so it starts afresh.
        if held.turn is not turn and held.turn != turn:
            self._pools.move(held, None)
            held.turn, held.engine = turn, held.conversation.hold(turn).engine
        was_ready = held.stage is Stage.READY
        self._place(held, now_s)
        if moved_on and was_ready and held.stage is Stage.READY:
            self._pools.queue(held)

    def _place(self, held: HeldTurn, now_s: float) -> None:
        """Ready iff no agent of its `after` has an open turn in its round."""
        turn = held.turn
        is_ready = not turn.after or turn.after.isdisjoint(held.conversation.speaking.get(turn.round, ()))
        stage = Stage.READY if is_ready else Stage.BLOCKED
        if held.stage is not stage:
            self._pools.move(held, stage, now_s)

    def _drop(self, held: HeldTurn) -> None:
        """Forget a turn that is not open or not wanted any more; one in flight is waited for."""
        conversation, turn = held.conversation, held.turn
        if held.stage is not Stage.IN_FLIGHT:
            self._pools.move(held, None)
            del conversation.turns[turn.key]
        elif conversation.wants(turn):
            raise self._invalid(conversation.index, f"turn {turn.key} vanished while it was in flight")

    def _settle_if_over(self, conversation: OpenConversation, actions: list[Action]) -> None:
        """Settle a conversation with no turn left, or with only turns that wait for ever."""
        held = conversation.turns.values()
        if all(turn.stage is Stage.BLOCKED for turn in held):
            for turn in list(held):
                self._pools.move(turn, None)
            del self._pools.conversations[conversation.index]
            actions.append(Settle(conversation.index))

    def _depart(self, actions: list[Action], now_s: float) -> None:
        while not self._stopped and self._pools.in_flight < self._in_flight_max:
            entry = _least(self._pools.models.values())
            if entry is None:
                return
            held = entry[-1]
            waited_s = max(0.0, now_s - held.ready_at_s)
            self._pools.move(held, Stage.IN_FLIGHT)
            held.sendings += 1
            is_isolated = held.is_suspect and held.is_isolated
            actions.append(Depart(held.conversation.index, held.turn, held.sendings, waited_s, is_isolated))

    def _open_more(self, actions: list[Action]) -> None:
        # After `_depart` a free slot is one that no ready turn can fill. Where the next turn waits for tokens there is
        # none, and another conversation would only wait too.
        held = self._pools
        if (
            held.in_flight < self._in_flight_max
            and self._tasks_remain
            and not self._stopped
            and not self._open_outstanding
            and any(pool.has_room for pool in held.models.values())
            and len(held.conversations) < OPEN_CONVERSATIONS_PER_SLOT_MAX * self._slots
        ):
            self._open_outstanding = True
            actions.append(Open())

    def _finish(self, actions: list[Action]) -> None:
        if not self._finished and not self._pools.in_flight and (self._stopped or self.is_done):
            self._finished = True
            actions.append(Finished())

    def _invalid(self, conversation: int, what: str) -> InvalidTransition:
        return InvalidTransition(f"conversation {conversation}: {what}", self.story(conversation))


def _speaking(turns: Sequence[Turn]) -> dict[int, set[str]]:
    speaking: dict[int, set[str]] = {}
    for turn in turns:
        speaking.setdefault(turn.round, set()).add(turn.agent)
    return speaking


def _least(models: Iterable[ModelPool]) -> Entry | None:
    """The first of all ready turns that a slot is free for."""
    least: Entry | None = None
    for pool in models:
        entry = pool.next_to_depart()
        if entry is not None and (least is None or entry < least):
            least = entry
    return least


class RunLog(Protocol):
    """Takes what concerns the run as a whole, in order, without waiting. Any call may raise StoreError."""

    @property
    def failure(self) -> StoreError | None:
        """The write that failed, if one did; nothing after it is acknowledged."""
        ...

    @property
    def written(self) -> int:
        """Conversations published and safe on disk, of all sessions."""
        ...

    def on_failure(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` when a write fails; the call may come from another thread."""
        ...

    def event(self, name: str, fields: JsonObject) -> None:
        """Append a line to the event log."""
        ...

    def checkpoint(self, accounting: JsonObject) -> None:
        """Keep the accounts of this session so far."""
        ...


class Recorder(RunLog, Protocol):
    """Takes the conversations of one experiment as well; with one experiment it is also the run's log."""

    def reply(self, task: Task, recorded: RecordedReply) -> None:
        """Append a reply to the journal."""
        ...

    def policy(self, model: str, policy: PolicyVersion) -> None:
        """Record the weights that a model has from now on, before the replies that follow."""
        ...

    def death(self, task: Task, turn_key: str) -> None:
        """Record that an engine died while it worked on this turn."""
        ...

    def deaths(self, task: Task) -> Mapping[str, int]:
        """Deaths of engines by turn, of a conversation that is not over, in all sessions."""
        ...

    def publish(self, task: Task, transcript: JsonObject) -> None:
        """Publish the transcript of a conversation that is over."""
        ...

    async def flow(self) -> None:
        """Wait while the backlog for the disk is too long."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Source:
    """One experiment of a run."""

    environment: Environment
    environment_name: str
    experiment_name: str
    engines: Mapping[str, str]
    """For each model of the experiment, the engine of the run that serves it."""
    recorder: Recorder
    retry: RetryConfig
    measure: Callable[[JsonObject], JsonObject] | None = None
    """What its metrics make of a transcript, if it has any."""


class Job(NamedTuple):
    """One conversation to play."""

    source: Source
    task: Task
    replies: tuple[RecordedReply, ...]
    """What is recorded of it so far."""


class Work(Protocol):
    """The conversations of a run, in the order in which they begin."""

    async def take(self) -> Job | None:
        """The next one, or None when none is left. Calls do not overlap."""
        ...

    def settled(self, source: Source) -> None:
        """A conversation of `source` is published and its ending is in the event log."""
        ...
