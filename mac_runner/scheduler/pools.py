"""The three pools and the moves between them: pending (blocked or backing off), pre-departure (ready), in flight.

`Pools` moves turns into and out of each pool and keeps the counts; `state` decides which turn moves when. Each
turn is in exactly one stage:

    stage        held in                        counted in                   slot
    BLOCKED      Pools.blocked                  -                            no
    BACKING_OFF  Pools.backing_off              -                            no
    READY        the heap of its engine         ModelPool.ready              no
    IN_FLIGHT    -                              ModelPool/Pools.in_flight    yes

A turn that leaves a heap from the middle stays in it as a dead entry until it surfaces or the dead outnumber the
living. So leaving costs O(1), and a heap holds at most about twice its living entries.

`validate_pools` derives every invariant from scratch.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice
from typing import Final, TypeAlias

from mac_runner.scheduler.engine_policy import TURNED_AWAY_MAX, ConcurrencyLimit
from mac_runner.types import Turn

OPEN_CONVERSATIONS_PER_SLOT_MAX: Final = 4
"""Open conversations per slot: enough to fill the slots, and few enough to bound memory."""
READY_HEAP_DEAD_MAX: Final = 64
"""Dead entries that a heap may hold beyond the number of its living ones."""

Place: TypeAlias = tuple[int, int, int, int]
"""`Turn.canonical`: the place of a turn in its conversation, in whatever order replies arrive."""

BEFORE_ALL: Final[Place] = (-1, -1, -1, -1)
"""The place before every turn: a conversation that failed here wants none of its turns."""

Needs: TypeAlias = Mapping[str, int]
"""Tokens of KV cache that the next turn of each agent is expected to take, prompt and reply together.

Empty while no model admits by tokens."""

Entry: TypeAlias = "tuple[int, int, int, int, int, int, HeldTurn]"
"""(urgency, -rounds completed, conversation, round, place, serial, turn); the least departs first."""


_SUSPECT: Final = 1_000
"""The urgency of a suspect."""


class Stage(Enum):
    """Where a turn is."""

    BLOCKED = "blocked"
    BACKING_OFF = "backing off"
    READY = "ready"
    IN_FLIGHT = "in flight"


@dataclass(slots=True, eq=False)
class HeldTurn:
    """One open turn."""

    conversation: OpenConversation
    turn: Turn
    engine: str
    """The engine that serves its model, and the name of the ModelPool that counts it."""
    stage: Stage | None = None
    """None before it enters a pool."""
    sendings: int = 0
    ready_at_s: float = 0.0
    entry: Entry | None = None
    """Its living heap entry while it is ready."""
    charged_tokens: int = 0
    """What it takes of the engine's token budget while it is in flight."""
    times_turned_away: int = 0
    """How often the engine had no room for it."""
    is_suspect: bool = False
    """Whether engines died on it: it departs after all others, alone on its engine or on one server of it."""
    is_isolated: bool = False
    """Whether its last sending left it to the engine to serve it alone on one of its servers."""

    @property
    def needed_tokens(self) -> int:
        """What it is expected to take of the engine's token budget."""
        return self.conversation.needs.get(self.turn.agent, 0)

    @property
    def is_turned_away_always(self) -> bool:
        """Whether it may itself be the cause: some services answer "busy" to every prompt that is too large."""
        return self.times_turned_away > TURNED_AWAY_MAX


@dataclass(slots=True, eq=False)
class OpenConversation:
    """The open turns of one conversation."""

    index: int
    rounds_completed: int = 0
    turns: dict[str, HeldTurn] = field(default_factory=dict)
    speaking: dict[int, set[str]] = field(default_factory=dict)
    """By round, the agents with an open turn in it."""
    failed_at: Place | None = None
    """The place it failed at: turns from there on are not wanted, those before it still are."""
    needs: Needs = field(default_factory=dict)
    suspects: frozenset[str] = frozenset()
    """Keys of turns that engines died on in earlier sessions."""
    engines: Mapping[str, str] = field(default_factory=dict)
    """The engine of each model; a model that is missing is served by the engine of its own name."""

    def hold(self, turn: Turn) -> HeldTurn:
        """A turn of this conversation, in no pool yet."""
        engine = self.engines.get(turn.model, turn.model)
        return HeldTurn(self, turn, engine, is_suspect=turn.key in self.suspects)

    def wants(self, turn: Turn) -> bool:
        """Whether `turn` still matters: the conversation did not fail at it or before it."""
        return self.failed_at is None or turn.canonical < self.failed_at


@dataclass(slots=True, eq=False)
class ModelPool:
    """One engine: its slots, and the heap of the turns that are ready for it.

    An engine with a token budget has a slot for its next turn only while that turn's tokens fit beside those in flight.
    No turn overtakes one that waits for tokens, or a long one would starve. A turn that needs more than the whole
    budget departs when nothing else is in flight.
    """

    name: str
    capacity: int = 0
    """Requests it serves at once."""
    limit: int = 0
    """The most requests that may be in flight; those beyond the capacity wait inside the engine."""
    token_budget: int | None = None
    isolates: bool = False
    """Whether it serves a suspect alone on one of its servers, so that others may go on."""
    in_flight: int = 0
    overhang: int = 0
    """Requests in flight beyond the limit since it shrank."""
    tokens_in_flight: int = 0
    ready: int = 0
    """Living entries of the heap."""
    dead: int = 0
    """Entries of the heap that do not count any more."""
    is_trying: bool = False
    """Whether a suspect is in flight; no other suspect departs meanwhile."""
    is_reserved: bool = False
    """Whether a suspect is in flight that the engine does not isolate; nothing else departs meanwhile."""
    is_resting: bool = False
    """Whether it turned away its only request and is left alone for a while."""
    concurrency_limit: ConcurrencyLimit = field(default_factory=ConcurrencyLimit)
    heap: list[Entry] = field(default_factory=list)

    def resize(self, capacity: int, lookahead: int, *, isolates: bool) -> None:
        """Take in another size. What is in flight stays, even where it is more than that."""
        self.capacity, self.limit, self.isolates = capacity, capacity + lookahead, isolates
        self.overhang = max(0, self.in_flight - self.limit)

    def first(self) -> Entry | None:
        """The entry that departs next, None when nothing is ready."""
        heap = self.heap
        while heap and heap[0][-1].entry is not heap[0]:
            heapq.heappop(heap)
            self.dead -= 1
        return heap[0] if heap else None

    def next_to_depart(self) -> Entry | None:
        """The entry that a slot is free for, None when there is none."""
        entry = self.first() if self.ready and self._has_slot else None
        return entry if entry is not None and self._has_room_for(entry[-1]) else None

    @property
    def has_room(self) -> bool:
        """Whether one more may be in flight. A turn that is not ready yet is assumed to fit the token budget.

        A suspect that waits for a free engine takes no room: others may go before it.
        """
        return self._has_slot and not self._lacks_tokens

    @property
    def effective_capacity(self) -> int:
        """How many requests are served at once now: those in flight where the next one has to wait."""
        is_held_up = self.is_reserved or self._lacks_tokens
        return min(self.in_flight if is_held_up else self.concurrency_limit.within(self.limit), self.capacity)

    def turned_away(self, held: HeldTurn, delay_s: float | None) -> float:
        """Take in that the engine had no room for a turn that left the flight and returns in `delay_s` (None: never).

        Returns for how many seconds the engine rests now, often 0.
        """
        held.times_turned_away += 1
        if held.is_turned_away_always:
            return 0.0
        self.concurrency_limit.turned_away(self.in_flight)
        rest_s = 0.0 if self.in_flight else self.concurrency_limit.rest_s(delay_s)
        self.is_resting = rest_s > 0
        return rest_s

    def answered(self) -> None:
        """Take in an answer to a request that left the flight."""
        self.concurrency_limit.answered(self.in_flight + 1, self.limit)

    @property
    def _has_slot(self) -> bool:
        is_free = not (self.is_reserved or self.is_resting)
        return is_free and self.in_flight < self.concurrency_limit.within(self.limit)

    @property
    def _lacks_tokens(self) -> bool:
        entry = self.first() if self.token_budget is not None and self.in_flight < self.limit else None
        return entry is not None and not self._has_tokens_for(entry[-1])

    def _has_room_for(self, held: HeldTurn) -> bool:
        is_held_up = held.is_suspect and (self.is_trying if self.isolates else self.in_flight)
        return not is_held_up and self._has_tokens_for(held)

    def _has_tokens_for(self, held: HeldTurn) -> bool:
        budget = self.token_budget
        return budget is None or not self.in_flight or self.tokens_in_flight + held.needed_tokens <= budget

    def mark_dead(self) -> None:
        """Count a dead entry; rebuild the heap when the dead outnumber the living."""
        self.dead += 1
        if self.dead > self.ready + READY_HEAP_DEAD_MAX:
            self.heap = [entry for entry in self.heap if entry[-1].entry is entry]
            heapq.heapify(self.heap)
            self.dead = 0


class Pools:
    """All models, all open conversations, and every turn in its pool."""

    def __init__(self) -> None:
        self.models: dict[str, ModelPool] = {}
        self.conversations: dict[int, OpenConversation] = {}
        self.blocked: dict[HeldTurn, None] = {}
        self.backing_off: dict[HeldTurn, None] = {}
        self.in_flight = 0
        self._serial = 0

    def model(self, name: str) -> ModelPool:
        """The pool of an engine; before ModelReady it has no slots."""
        pool = self.models.get(name)
        if pool is None:
            pool = self.models[name] = ModelPool(name)
        return pool

    def move(self, held: HeldTurn, to: Stage | None, now_s: float = 0.0) -> None:
        """Move a turn to another pool, or out of all of them."""
        self._leave(held)
        held.stage = to
        if to is Stage.READY:
            held.ready_at_s = now_s
            self.queue(held)
            self.model(held.engine).ready += 1
        elif to is Stage.IN_FLIGHT:
            pool = self.model(held.engine)
            held.charged_tokens = held.needed_tokens
            pool.tokens_in_flight += held.charged_tokens
            pool.in_flight += 1
            if held.is_suspect:
                held.is_isolated = pool.isolates
                pool.is_trying, pool.is_reserved = True, not pool.isolates
            self.in_flight += 1
        elif to is Stage.BLOCKED:
            self.blocked[held] = None
        elif to is Stage.BACKING_OFF:
            self.backing_off[held] = None

    def queue(self, held: HeldTurn) -> None:
        """Push a ready turn into its heap with its present priority; an earlier entry of it dies."""
        turn, conversation = held.turn, held.conversation
        pool = self.model(held.engine)
        if held.entry is not None:
            held.entry = None
            pool.mark_dead()
        self._serial += 1
        held.entry = (
            urgency(held),
            -conversation.rounds_completed,
            conversation.index,
            turn.round,
            turn.place,
            self._serial,
            held,
        )
        heapq.heappush(pool.heap, held.entry)

    def _leave(self, held: HeldTurn) -> None:
        if held.stage is Stage.READY:
            pool = self.model(held.engine)
            held.entry = None
            pool.ready -= 1
            pool.mark_dead()
        elif held.stage is Stage.IN_FLIGHT:
            pool = self.model(held.engine)
            pool.tokens_in_flight -= held.charged_tokens
            pool.in_flight -= 1
            if pool.overhang:
                pool.overhang -= 1
            if held.is_suspect:
                pool.is_trying = pool.is_reserved = False
            self.in_flight -= 1
        elif held.stage is Stage.BLOCKED:
            del self.blocked[held]
        elif held.stage is Stage.BACKING_OFF:
            del self.backing_off[held]


def urgency(held: HeldTurn) -> int:
    """The class of a turn's priority; lower ones depart first.

    0 for follow-ups and retries, 1 for other turns, then turns that were turned away often (those tried less often
    first), and last suspects.
    """
    if held.is_suspect:
        return _SUSPECT
    if held.is_turned_away_always:
        return min(held.times_turned_away, _SUSPECT - 1)
    return 0 if held.sendings or held.turn.is_followup else 1


# A snapshot for people: counts, and the first turns of each queue.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCounts:
    """One model's queue and slots."""

    model: str
    in_flight: int
    """Requests in flight, without those that wait inside the engine for a slot."""
    slots: int
    """Slots in effect now: what concurrency, token budget and concurrency limit leave of the capacity."""
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTurn:
    """One turn that waits: for a slot, for the agents in `waits_for`, or (backing off) for its next sending."""

    conversation: int
    turn: Turn
    sendings: int
    waits_for: tuple[str, ...] = ()
    is_backing_off: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSnapshot:
    """The three pools at one moment."""

    slots: int
    in_flight: int
    ready: int
    blocked: int
    backing_off: int
    open_conversations: int
    models: tuple[ModelCounts, ...]
    ready_rows: tuple[WaitingTurn, ...]
    pending_rows: tuple[WaitingTurn, ...]

    @property
    def pending(self) -> int:
        """Turns that could not depart even if every slot were free: blocked and backing off."""
        return self.blocked + self.backing_off


def snapshot_of(pools: Pools, slots: int, rows: int) -> PoolSnapshot:
    """The pools now, with the first `rows` turns in order of departure and the first `rows` pending.

    The first ready turns are found by walking the frontier of the heaps, not by sorting them. A heap's k smallest
    entries are connected at its top, so this takes O(rows log rows) steps.
    """
    models = tuple(
        ModelCounts(
            model=pool.name,
            in_flight=min(pool.in_flight, pool.capacity),
            slots=min(pool.effective_capacity, slots),
            ready=pool.ready,
        )
        for pool in pools.models.values()
    )
    return PoolSnapshot(
        slots=slots,
        in_flight=pools.in_flight,
        ready=sum(model.ready for model in models),
        blocked=len(pools.blocked),
        backing_off=len(pools.backing_off),
        open_conversations=len(pools.conversations),
        models=models,
        ready_rows=tuple(_waiting(entry[-1]) for entry in islice(_in_order(pools), rows)),
        pending_rows=tuple(_waiting(held) for held in islice(chain(pools.backing_off, pools.blocked), rows)),
    )


def _in_order(pools: Pools) -> Iterator[Entry]:
    """The living entries of all heaps from the least on, lazily."""
    heaps = [pool.heap for pool in pools.models.values()]
    frontier = [(heap[0], number, 0) for number, heap in enumerate(heaps) if heap]
    heapq.heapify(frontier)
    while frontier:
        entry, number, place = heapq.heappop(frontier)
        heap = heaps[number]
        for child in (2 * place + 1, 2 * place + 2):
            if child < len(heap):
                heapq.heappush(frontier, (heap[child], number, child))
        if entry[-1].entry is entry:
            yield entry


def _waiting(held: HeldTurn) -> WaitingTurn:
    turn = held.turn
    speaking = held.conversation.speaking.get(turn.round, set())
    return WaitingTurn(
        conversation=held.conversation.index,
        turn=turn,
        sendings=held.sendings,
        waits_for=tuple(sorted(turn.after & speaking)),
        is_backing_off=held.stage is Stage.BACKING_OFF,
    )


def validate_pools(pools: Pools, *, slots: int, slots_max: int, concurrency: int | None) -> None:
    """Raise AssertionError when a turn is lost or doubled, a slot leaked, a count wrong or a heap out of order.

    `slots_max` is the most that `slots` ever was.
    """
    held = [turn for conversation in pools.conversations.values() for turn in conversation.turns.values()]
    by_stage = Counter(turn.stage for turn in held)
    assert None not in by_stage, "a held turn is in no pool"
    _check_pending(pools, held)
    _check_slots(pools, by_stage[Stage.IN_FLIGHT], slots, concurrency)
    bound = OPEN_CONVERSATIONS_PER_SLOT_MAX * slots_max
    assert len(pools.conversations) <= bound, f"{len(pools.conversations)} conversations open, at most {bound} may be"
    for pool in pools.models.values():
        _check_model(pool, [turn for turn in held if turn.engine == pool.name])
    assert sum(pool.ready for pool in pools.models.values()) == by_stage[Stage.READY], "ready turns of an unknown model"
    for index, conversation in pools.conversations.items():
        assert index == conversation.index, f"conversation {conversation.index} is filed under {index}"
        _check_conversation(conversation)


def _check_pending(pools: Pools, held: list[HeldTurn]) -> None:
    assert set(pools.blocked) == {turn for turn in held if turn.stage is Stage.BLOCKED}, "blocked pool"
    assert set(pools.backing_off) == {turn for turn in held if turn.stage is Stage.BACKING_OFF}, "backing-off pool"


def _check_slots(pools: Pools, in_flight: int, slots: int, concurrency: int | None) -> None:
    limit = sum(pool.limit for pool in pools.models.values())
    assert slots == (limit if concurrency is None else min(concurrency, limit)), "slots"
    assert pools.in_flight == in_flight, f"{in_flight} turns in flight, {pools.in_flight} counted"
    assert in_flight == sum(pool.in_flight for pool in pools.models.values()), "slots of models and of the run differ"
    assert concurrency is None or in_flight <= concurrency, f"{in_flight} in flight, at most {concurrency} may be"


def _check_model(pool: ModelPool, held: list[HeldTurn]) -> None:
    ready = {turn for turn in held if turn.stage is Stage.READY}
    living = [entry for entry in pool.heap if entry[-1].entry is entry]
    assert pool.in_flight == sum(turn.stage is Stage.IN_FLIGHT for turn in held), f"{pool.name}: in flight"
    assert pool.in_flight >= 0, f"{pool.name}: {pool.in_flight} in flight"
    # Beyond the limit is only what was in flight when the limit shrank.
    assert pool.overhang == max(0, pool.in_flight - pool.limit), (
        f"{pool.name}: {pool.in_flight} in flight, {pool.limit} may be, {pool.overhang} of them since it shrank"
    )
    charged = sum(turn.charged_tokens for turn in held if turn.stage is Stage.IN_FLIGHT)
    assert pool.tokens_in_flight == charged, f"{pool.name}: {charged} tokens in flight, {pool.tokens_in_flight} counted"
    is_bounded = pool.token_budget is not None and pool.in_flight > 1
    assert not is_bounded or charged <= (pool.token_budget or 0), f"{pool.name}: more tokens in flight than fit"
    suspects = [turn for turn in held if turn.is_suspect and turn.stage is Stage.IN_FLIGHT]
    assert len(suspects) <= 1, f"{pool.name}: {len(suspects)} suspects at once"
    assert pool.is_trying == bool(suspects), f"{pool.name}: trying"
    assert pool.is_reserved == any(not turn.is_isolated for turn in suspects), f"{pool.name}: reserved"
    assert not pool.is_reserved or pool.in_flight == 1, f"{pool.name}: a suspect is not alone"
    assert not pool.is_resting or not pool.in_flight, f"{pool.name}: it rests while it works"
    assert pool.concurrency_limit.size is None or pool.concurrency_limit.size >= 1, f"{pool.name}: concurrency limit"
    assert pool.ready == len(ready), f"{pool.name}: {len(ready)} ready, {pool.ready} counted"
    assert len(living) == len(ready), f"{pool.name}: a ready turn has no entry, or two"
    assert {entry[-1] for entry in living} == ready, f"{pool.name}: the heap holds other turns than the ready ones"
    assert pool.dead == len(pool.heap) - len(living), f"{pool.name}: dead entries miscounted"
    assert pool.dead <= pool.ready + READY_HEAP_DEAD_MAX, f"{pool.name}: too many dead entries"
    for place in range(1, len(pool.heap)):
        assert pool.heap[(place - 1) // 2] <= pool.heap[place], f"{pool.name}: the heap is out of order"


def _check_conversation(conversation: OpenConversation) -> None:
    name = f"conversation {conversation.index}"
    assert any(turn.stage is not Stage.BLOCKED for turn in conversation.turns.values()), f"{name} is stuck"
    for key, held in conversation.turns.items():
        turn = held.turn
        assert key == turn.key, f"{name}: turn {turn.key} is filed under {key}"
        assert held.conversation is conversation, f"{name}: turn {key} belongs to another conversation"
        assert conversation.wants(turn) or held.stage is Stage.IN_FLIGHT, f"{name}: turn {key} is not wanted"
        assert (held.entry is not None) == (held.stage is Stage.READY), f"{name}: turn {key} has a stray entry"
        is_waiting = not turn.after.isdisjoint(conversation.speaking.get(turn.round, set()))
        assert held.stage is not Stage.READY or not is_waiting, f"{name}: turn {key} is ready and must wait"
        assert held.stage is not Stage.BLOCKED or is_waiting, f"{name}: turn {key} is blocked by no agent"
        if held.entry is not None:
            expected = (
                urgency(held),
                -conversation.rounds_completed,
                conversation.index,
            )
            assert held.entry[:3] == expected, f"{name}: turn {key} has an old priority"
