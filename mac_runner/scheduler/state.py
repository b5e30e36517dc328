"""The RequestScheduler: which turn departs when, as a pure state machine.

`handle(event)` is its only mutator and returns the actions to perform. It knows nothing of engines, prompts, tasks,
disks or asyncio, and it has no clock: whoever calls tells the time, which is only ever handed back as the waiting
time of a departure. An event costs O(open turns of its own conversation + log n); nothing looks at all conversations.

Promises:
- a turn departs only when it is wanted, when no agent it waits for has an open turn in its round, and when its model
  and the run as a whole have a free slot; among those that may, the least priority departs (see `pools.Entry`);
- the heads of all models are compared, so a full model never holds up another;
- of a model with a token budget no more departs than its tokens allow (see `pools.ModelPool`);
- a turn that engines died on departs behind all others, and alone on its model;
- an engine that turns requests away is handed no more than it takes (see `window`);
- a slot is held from Depart to Answered or Faulted and at no other time;
- conversations are opened when a slot is free that no ready turn can fill, and never more than
  OPEN_CONVERSATIONS_PER_SLOT_MAX per slot;
- a failed conversation takes only its own turns with it. Turns before the failed one (`Turn.canonical`) still run,
  those after it are dropped at once, and what is in flight is waited for: so how far a failed conversation got does
  not depend on how many requests ran at once;
- a conversation none of whose turns can ever start is settled instead of waiting for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import assert_never

from mac_runner.limits import OPEN_CONVERSATIONS_PER_SLOT_MAX, STORY_EVENTS_MAX
from mac_runner.scheduler import invariants, snapshot
from mac_runner.scheduler.events import (
    BEFORE_ALL,
    Action,
    Answered,
    Broken,
    Depart,
    Event,
    Faulted,
    Finished,
    InvalidTransition,
    ModelReady,
    Open,
    Opened,
    Place,
    Rest,
    RestOver,
    RetryDue,
    RetryLater,
    Settle,
    Stop,
    TasksExhausted,
)
from mac_runner.scheduler.pools import Entry, HeldTurn, ModelPool, OpenConversation, Pool, Pools
from mac_runner.types import Turn


class RequestScheduler:
    """The three pools and the rules by which turns move between them."""

    def __init__(self, concurrency: int | None = None) -> None:
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
        self._concurrency = concurrency
        self._pools = Pools()
        self._slots = 0
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
        """Whether an Open waits for its answer."""
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
        """How many requests of `model` are served at once as things stand: its capacity, or what its tokens allow."""
        return self._pools.model(model).effective_capacity

    def flying(self, engine: str) -> list[tuple[int, Turn]]:
        """The turns in flight on `engine`, with their conversations; O(open turns)."""
        return [
            (conversation.index, held.turn)
            for conversation in self._pools.conversations.values()
            for held in conversation.turns.values()
            if held.pool is Pool.IN_FLIGHT and held.engine == engine
        ]

    @property
    def open_conversations(self) -> int:
        """How many conversations are open."""
        return len(self._pools.conversations)

    def handle(self, event: Event, now_s: float = 0.0) -> list[Action]:
        """Apply one event that happened at `now_s`; the actions are to be performed in their order."""
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
                self._model_ready(event)
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

    def snapshot(self, rows: int) -> snapshot.PoolSnapshot:
        """The pools as they stand, with the first `rows` ready and blocked turns; O(rows log rows)."""
        return snapshot.take(self._pools, self._slots, rows)

    def story(self, conversation: int) -> tuple[Event | Action, ...]:
        """What the bounded log still tells of one conversation."""
        return tuple(entry for entry in self._log if getattr(entry, "conversation", None) == conversation)

    def validate(self) -> None:
        """Re-derive every invariant from scratch. Raises AssertionError with the latest events."""
        try:
            invariants.check(self._pools, slots=self._slots, concurrency=self._concurrency)
            assert not (self._finished and self._pools.in_flight), "finished with requests in flight"
        except AssertionError as broken:
            raise AssertionError("\n  ".join([str(broken), *map(str, list(self._log)[-20:])])) from None

    def _model_ready(self, event: ModelReady) -> None:
        pool = self._pools.model(event.model)
        pool.capacity, pool.token_budget, pool.lookahead = event.capacity, event.token_budget, event.lookahead
        limit = sum(pool.limit for pool in self._pools.models.values())
        self._slots = limit if self._concurrency is None else min(self._concurrency, limit)

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
            self._turned_away(held, event.delay_s, actions)
        if event.delay_s is None:
            self._fail(conversation, turn.canonical, actions)
            return
        if conversation.wants(turn):
            conversation.turns[turn.key] = held
            held.is_suspect = held.is_suspect or event.is_suspect
            self._pools.move(held, Pool.BACKING_OFF, now_s)
            actions.append(RetryLater(event.conversation, turn, event.delay_s))
        self._settle_if_over(conversation, actions)

    def _turned_away(self, held: HeldTurn, delay_s: float | None, actions: list[Action]) -> None:
        rest_s = self._pools.model(held.engine).turned_away(held, delay_s)
        if rest_s > 0:
            actions.append(Rest(held.engine, rest_s))

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
        if held is not None and held.pool is Pool.BACKING_OFF:
            self._place(held, now_s)

    def _land(self, index: int, turn: Turn) -> HeldTurn:
        """Free the slot of a turn in flight and let go of the turn."""
        conversation = self._pools.conversations.get(index)
        held = conversation.turns.get(turn.key) if conversation else None
        if conversation is None or held is None or held.pool is not Pool.IN_FLIGHT:
            raise self._invalid(index, f"turn {turn.key} came back, and it was not in flight")
        self._pools.move(held, None)
        del conversation.turns[turn.key]
        return held

    def _adopt(self, conversation: OpenConversation, turns: Sequence[Turn], rounds: int, now_s: float) -> None:
        """Bring what is held in line with the turns open now: hold new ones, drop vanished ones, place the waiting."""
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
            if held.pool is None or held.pool is Pool.BLOCKED or held.pool is Pool.READY:
                self._refresh(held, turn, now_s, moved_on=moved_on)
        conversation.turns = after | before
        for held in before.values():
            self._drop(held)

    def _refresh(self, held: HeldTurn, turn: Turn, now_s: float, *, moved_on: bool) -> None:
        if (
            held.turn is not turn and held.turn != turn
        ):  # The same key with another `after` or model: it was never sent, so it starts anew.
            self._pools.move(held, None)
            held.turn, held.engine = turn, held.conversation.hold(turn).engine
        was_ready = held.pool is Pool.READY
        self._place(held, now_s)
        if moved_on and was_ready and held.pool is Pool.READY:
            self._pools.queue(held)

    def _place(self, held: HeldTurn, now_s: float) -> None:
        """Ready iff no agent of its `after` has an open turn in its round."""
        turn = held.turn
        is_ready = not turn.after or turn.after.isdisjoint(held.conversation.speaking.get(turn.round, ()))
        pool = Pool.READY if is_ready else Pool.BLOCKED
        if held.pool is not pool:
            self._pools.move(held, pool, now_s)

    def _drop(self, held: HeldTurn) -> None:
        """Let go of a turn that is not open or not wanted any more; one in flight is waited for."""
        conversation, turn = held.conversation, held.turn
        if held.pool is not Pool.IN_FLIGHT:
            self._pools.move(held, None)
            del conversation.turns[turn.key]
        elif conversation.wants(turn):
            raise self._invalid(conversation.index, f"turn {turn.key} vanished while it was in flight")

    def _settle_if_over(self, conversation: OpenConversation, actions: list[Action]) -> None:
        """Settle a conversation nothing more can come of: no turn is left, or all wait for turns nobody will take."""
        held = conversation.turns.values()
        if all(turn.pool is Pool.BLOCKED for turn in held):
            for turn in list(held):
                self._pools.move(turn, None)
            del self._pools.conversations[conversation.index]
            actions.append(Settle(conversation.index))

    def _depart(self, actions: list[Action], now_s: float) -> None:
        pools = self._pools
        while not self._stopped and pools.in_flight < self._slots:
            entry = _least(pools.models.values())
            if entry is None:
                return
            held = entry[-1]
            waited_s = max(0.0, now_s - held.ready_at_s)
            pools.move(held, Pool.IN_FLIGHT)
            held.sendings += 1
            actions.append(Depart(held.conversation.index, held.turn, held.sendings, waited_s))

    def _open_more(self, actions: list[Action]) -> None:
        # After `_depart` a free slot is one that no ready turn can fill; where the next turn waits for tokens there is
        # none, and another conversation would only wait too.
        pools = self._pools
        if (
            pools.in_flight < self._slots
            and self._tasks_remain
            and not self._stopped
            and not self._open_outstanding
            and any(pool.has_room for pool in pools.models.values())
            and len(pools.conversations) < OPEN_CONVERSATIONS_PER_SLOT_MAX * self._slots
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
    """The first of all ready turns whose model has a free slot."""
    least: Entry | None = None
    for pool in models:
        entry = pool.next_to_depart()
        if entry is not None and (least is None or entry < least):
            least = entry
    return least
