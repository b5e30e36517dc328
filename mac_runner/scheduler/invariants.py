"""Every invariant of the pools, derived from scratch: slow on purpose, run after each event of a test."""

from __future__ import annotations

from collections import Counter

from mac_runner.limits import OPEN_CONVERSATIONS_PER_SLOT_MAX, READY_HEAP_DEAD_MAX
from mac_runner.scheduler.pools import HeldTurn, ModelPool, OpenConversation, Pool, Pools, urgency


def check(pools: Pools, *, slots: int, concurrency: int | None) -> None:
    """Raise AssertionError when a turn is lost or doubled, a slot leaked, a count wrong or a heap out of order."""
    held = [turn for conversation in pools.conversations.values() for turn in conversation.turns.values()]
    by_pool = Counter(turn.pool for turn in held)
    assert None not in by_pool, "a held turn is in no pool"
    _check_pending(pools, held)
    _check_slots(pools, by_pool[Pool.IN_FLIGHT], slots, concurrency)
    for pool in pools.models.values():
        _check_model(pool, [turn for turn in held if turn.engine == pool.name])
    assert sum(pool.ready for pool in pools.models.values()) == by_pool[Pool.READY], "ready turns of an unknown model"
    for index, conversation in pools.conversations.items():
        assert index == conversation.index, f"conversation {conversation.index} is filed under {index}"
        _check_conversation(conversation)


def _check_pending(pools: Pools, held: list[HeldTurn]) -> None:
    assert set(pools.blocked) == {turn for turn in held if turn.pool is Pool.BLOCKED}, "blocked pool"
    assert set(pools.backing_off) == {turn for turn in held if turn.pool is Pool.BACKING_OFF}, "backing-off pool"


def _check_slots(pools: Pools, in_flight: int, slots: int, concurrency: int | None) -> None:
    limit = sum(pool.limit for pool in pools.models.values())
    assert slots == (limit if concurrency is None else min(concurrency, limit)), "slots"
    assert pools.in_flight == in_flight, f"{in_flight} turns in flight, {pools.in_flight} counted"
    assert in_flight == sum(pool.in_flight for pool in pools.models.values()), "slots of models and of the run differ"
    assert in_flight <= slots, f"{in_flight} in flight on {slots} slots"
    bound = OPEN_CONVERSATIONS_PER_SLOT_MAX * slots
    assert len(pools.conversations) <= bound, f"{len(pools.conversations)} conversations open, at most {bound} may be"


def _check_model(pool: ModelPool, held: list[HeldTurn]) -> None:
    ready = {turn for turn in held if turn.pool is Pool.READY}
    living = [entry for entry in pool.heap if entry[-1].entry is entry]
    assert pool.in_flight == sum(turn.pool is Pool.IN_FLIGHT for turn in held), f"{pool.name}: in flight"
    assert 0 <= pool.in_flight <= pool.limit, f"{pool.name}: {pool.in_flight} in flight, {pool.limit} may be"
    charged = sum(turn.charged_tokens for turn in held if turn.pool is Pool.IN_FLIGHT)
    assert pool.tokens_in_flight == charged, f"{pool.name}: {charged} tokens in flight, {pool.tokens_in_flight} counted"
    is_bounded = pool.token_budget is not None and pool.in_flight > 1
    assert not is_bounded or charged <= (pool.token_budget or 0), f"{pool.name}: more tokens in flight than fit"
    assert pool.is_reserved == any(turn.is_suspect for turn in held if turn.pool is Pool.IN_FLIGHT), (
        f"{pool.name}: reserved"
    )
    assert not pool.is_reserved or pool.in_flight == 1, f"{pool.name}: a suspect is not alone"
    assert not pool.is_resting or not pool.in_flight, f"{pool.name}: it rests while it works"
    assert pool.window.size is None or 1 <= pool.window.size <= pool.limit, f"{pool.name}: window"
    assert pool.ready == len(ready), f"{pool.name}: {len(ready)} ready, {pool.ready} counted"
    assert len(living) == len(ready), f"{pool.name}: a ready turn has no entry, or two"
    assert {entry[-1] for entry in living} == ready, f"{pool.name}: the heap holds other turns than the ready ones"
    assert pool.dead == len(pool.heap) - len(living), f"{pool.name}: dead entries miscounted"
    assert pool.dead <= pool.ready + READY_HEAP_DEAD_MAX, f"{pool.name}: too many dead entries"
    for place in range(1, len(pool.heap)):
        assert pool.heap[(place - 1) // 2] <= pool.heap[place], f"{pool.name}: the heap is out of order"


def _check_conversation(conversation: OpenConversation) -> None:
    name = f"conversation {conversation.index}"
    assert any(turn.pool is not Pool.BLOCKED for turn in conversation.turns.values()), f"{name} can go nowhere"
    for key, held in conversation.turns.items():
        turn = held.turn
        assert key == turn.key, f"{name}: turn {turn.key} is filed under {key}"
        assert held.conversation is conversation, f"{name}: turn {key} belongs to another conversation"
        assert conversation.wants(turn) or held.pool is Pool.IN_FLIGHT, f"{name}: turn {key} is not wanted"
        assert (held.entry is not None) == (held.pool is Pool.READY), f"{name}: turn {key} has a stray entry"
        is_waiting = not turn.after.isdisjoint(conversation.speaking.get(turn.round, set()))
        assert held.pool is not Pool.READY or not is_waiting, f"{name}: turn {key} is ready and must wait"
        assert held.pool is not Pool.BLOCKED or is_waiting, f"{name}: turn {key} is blocked by nobody"
        if held.entry is not None:
            expected = (
                urgency(held),
                -conversation.rounds_completed,
                conversation.index,
            )
            assert held.entry[:3] == expected, f"{name}: turn {key} has an old priority"
