"""The three pools and the moves between them: pending (blocked or backing off), ready, in flight.

`Pools` is a table of facts. It knows how a turn enters and leaves each pool and keeps the counts; which turn moves
when is decided in `state`. Each turn is in exactly one pool:

    pool         held in                        counted in                   slot
    BLOCKED      Pools.blocked                  -                            no
    BACKING_OFF  Pools.backing_off              -                            no
    READY        the heap of its model          ModelPool.ready              no
    IN_FLIGHT    -                              ModelPool/Pools.in_flight    yes

A turn that leaves a heap from the middle stays in it as a dead entry until it surfaces or the dead outnumber the
living, so that leaving costs O(1) and the heap is never more than about twice what it holds.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from mac_runner.limits import READY_HEAP_DEAD_MAX, TURNED_AWAY_MAX
from mac_runner.scheduler.events import Needs, Place
from mac_runner.scheduler.window import Window
from mac_runner.types import Turn

Entry: TypeAlias = "tuple[int, int, int, int, int, int, HeldTurn]"
"""(urgency, -rounds completed, conversation, round, place, serial, turn); the least is first.

The urgency is 0 of a follow-up or a retry and 1 of any other turn; behind these come turns that were turned away over
and over, and last of all suspects (see `urgency`)."""


_SUSPECT: Final = 1_000
"""The urgency of a suspect."""


class Pool(Enum):
    """Where a turn is."""

    BLOCKED = "blocked"
    BACKING_OFF = "backing off"
    READY = "ready"
    IN_FLIGHT = "in flight"


@dataclass(slots=True, eq=False)
class HeldTurn:
    """One open turn; `entry` is its living heap entry while it is ready, `pool` None before it entered any.

    `engine` is the one that serves its model, and names the ModelPool that counts it. `charged_tokens` is what it takes
    of that engine's token budget while it is in flight. `times_turned_away` is how often the engine had no room for it.
    A suspect is one that engines have died on: it departs behind all others and has its engine for itself.
    """

    conversation: OpenConversation
    turn: Turn
    engine: str
    pool: Pool | None = None
    sendings: int = 0
    ready_at_s: float = 0.0
    entry: Entry | None = None
    charged_tokens: int = 0
    times_turned_away: int = 0
    is_suspect: bool = False

    @property
    def needed_tokens(self) -> int:
        """What it is expected to take of its model's token budget."""
        return self.conversation.needs.get(self.turn.agent, 0)

    @property
    def is_turned_away_always(self) -> bool:
        """Whether it may be at fault itself: some services say for ever that they are busy to a prompt that is too
        large for them.
        """
        return self.times_turned_away > TURNED_AWAY_MAX


@dataclass(slots=True, eq=False)
class OpenConversation:
    """The open turns of one conversation.

    `speaking` names, per round, the agents with an open turn in it. `failed_at` is the place it failed at: turns
    from there on are not wanted any more, those before it still are. `suspects` are the keys of turns that engines
    died on in earlier sessions.
    """

    index: int
    rounds_completed: int = 0
    turns: dict[str, HeldTurn] = field(default_factory=dict)
    speaking: dict[int, set[str]] = field(default_factory=dict)
    failed_at: Place | None = None
    needs: Needs = field(default_factory=dict)
    suspects: frozenset[str] = frozenset()
    engines: Mapping[str, str] = field(default_factory=dict)

    def hold(self, turn: Turn) -> HeldTurn:
        """A turn of it that is in no pool yet."""
        engine = self.engines.get(turn.model, turn.model)
        return HeldTurn(self, turn, engine, is_suspect=turn.key in self.suspects)

    def wants(self, turn: Turn) -> bool:
        """Whether `turn` still matters: it always does, unless the conversation failed at it or before it."""
        return self.failed_at is None or turn.canonical < self.failed_at


@dataclass(slots=True, eq=False)
class ModelPool:
    """One engine: its slots, and the heap of turns ready for it (`dead` of its entries do not count any more).

    It serves `capacity` requests at once, and `lookahead` more may be in flight, which wait inside the engine. Of an
    engine that turns requests away, the `window` tells how many may be in flight; when it turned one away with nothing
    else in hand it `is_resting` for a while, and nothing departs.

    A model with a token budget has a slot for its next turn only while what that turn needs fits beside the tokens in
    flight. No turn overtakes one that waits for tokens, or a long one would wait for ever; a turn that alone needs
    more than the budget departs when nothing else is in flight. So does a suspect, and while it `is_reserved` for one
    nothing else departs.
    """

    name: str
    capacity: int = 0
    lookahead: int = 0
    token_budget: int | None = None
    in_flight: int = 0
    tokens_in_flight: int = 0
    ready: int = 0
    dead: int = 0
    is_reserved: bool = False
    is_resting: bool = False
    window: Window = field(default_factory=Window)
    heap: list[Entry] = field(default_factory=list)

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
    def limit(self) -> int:
        """How many requests may ever be in flight."""
        return self.capacity + self.lookahead

    @property
    def has_room(self) -> bool:
        """Whether one more may be in flight, as far as tokens can be told: what is not ready yet is taken to fit.

        A suspect that waits for the model to be free takes no room: others may go before it.
        """
        return self._has_slot and not self._lacks_tokens

    @property
    def effective_capacity(self) -> int:
        """How many requests are served at once as things stand: those in flight, when the next one has to wait."""
        is_held_up = self.is_reserved or self._lacks_tokens
        return min(self.in_flight if is_held_up else self.window.within(self.limit), self.capacity)

    def turned_away(self, held: HeldTurn, delay_s: float | None) -> float:
        """The engine had no room for a turn, which is not in flight any more and is sent again in `delay_s` seconds,
        None for never: for how many seconds the engine rests now, often 0.
        """
        held.times_turned_away += 1
        if held.is_turned_away_always:
            return 0.0
        self.window.turned_away(self.in_flight)
        rest_s = 0.0 if self.in_flight else self.window.rest_s(delay_s)
        self.is_resting = rest_s > 0
        return rest_s

    def answered(self) -> None:
        """The engine answered a request, which is not in flight any more."""
        self.window.answered(self.in_flight + 1, self.limit)

    @property
    def _has_slot(self) -> bool:
        is_free = not (self.is_reserved or self.is_resting)
        return is_free and self.in_flight < self.window.within(self.limit)

    @property
    def _lacks_tokens(self) -> bool:
        entry = self.first() if self.token_budget is not None and self.in_flight < self.limit else None
        return entry is not None and not self._has_tokens_for(entry[-1])

    def _has_room_for(self, held: HeldTurn) -> bool:
        return self._has_tokens_for(held) and not (held.is_suspect and self.in_flight)

    def _has_tokens_for(self, held: HeldTurn) -> bool:
        budget = self.token_budget
        return budget is None or not self.in_flight or self.tokens_in_flight + held.needed_tokens <= budget

    def bury(self) -> None:
        """One more entry is dead; rebuild the heap when the dead outnumber the living."""
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
        """The pool of a model; one not yet announced has no slots."""
        pool = self.models.get(name)
        if pool is None:
            pool = self.models[name] = ModelPool(name)
        return pool

    def move(self, held: HeldTurn, to: Pool | None, now_s: float = 0.0) -> None:
        """Take a turn from the pool it is in to another one, or out of all of them."""
        self._leave(held)
        held.pool = to
        if to is Pool.READY:
            held.ready_at_s = now_s
            self.queue(held)
            self.model(held.engine).ready += 1
        elif to is Pool.IN_FLIGHT:
            pool = self.model(held.engine)
            held.charged_tokens = held.needed_tokens
            pool.tokens_in_flight += held.charged_tokens
            pool.in_flight += 1
            pool.is_reserved = held.is_suspect
            self.in_flight += 1
        elif to is Pool.BLOCKED:
            self.blocked[held] = None
        elif to is Pool.BACKING_OFF:
            self.backing_off[held] = None

    def queue(self, held: HeldTurn) -> None:
        """Enter a ready turn into its heap with its present priority; an earlier entry of it dies."""
        turn, conversation = held.turn, held.conversation
        pool = self.model(held.engine)
        if held.entry is not None:
            held.entry = None
            pool.bury()
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
        if held.pool is Pool.READY:
            pool = self.model(held.engine)
            held.entry = None
            pool.ready -= 1
            pool.bury()
        elif held.pool is Pool.IN_FLIGHT:
            pool = self.model(held.engine)
            pool.tokens_in_flight -= held.charged_tokens
            pool.in_flight -= 1
            pool.is_reserved = False
            self.in_flight -= 1
        elif held.pool is Pool.BLOCKED:
            del self.blocked[held]
        elif held.pool is Pool.BACKING_OFF:
            del self.backing_off[held]


def urgency(held: HeldTurn) -> int:
    """The class of a turn's priority: all of a lower one depart first.

    Of turns that are turned away over and over, those go first that were tried less often.
    """
    if held.is_suspect:
        return _SUSPECT
    if held.is_turned_away_always:
        return min(held.times_turned_away, _SUSPECT - 1)
    return 0 if held.sendings or held.turn.is_followup else 1
