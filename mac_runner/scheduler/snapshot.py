"""A snapshot of the pools for people: counts, and the first turns of each queue.

The first ready turns are found by walking the frontier of the heaps, not by sorting them. A heap's k smallest entries
are connected at its top, so this takes O(rows log rows) steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice

from mac_runner.scheduler.pools import Entry, HeldTurn, Pools, Stage
from mac_runner.types import Turn


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


def take(pools: Pools, slots: int, rows: int) -> PoolSnapshot:
    """The pools now, with the first `rows` turns in order of departure and the first `rows` pending."""
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
