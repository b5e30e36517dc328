"""What the engine hands back. Immutable, and free of tensors: it can be kept, sent and pickled.

~~~~
What the next step computes: a pure function of who waits, who runs and what the cache has.

There is one rule. Of each sequence `num_computed_tokens` chases `num_tokens`, under one budget of tokens for the
step; those that run come first, and of those the ones that lack a single token. Prompts in pieces, prefixes found in
the cache and sequences that start anew all follow from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mac_runner.nano.cache import CacheView, blocks_for
from mac_runner.nano.config import SchedulerConfig


class Work(NamedTuple):
    """So many tokens of this sequence are computed in this step."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """What one step does."""

    work: tuple[Work, ...] = ()
    admitted_seqs: tuple[int, ...] = ()
    preempted_seqs: tuple[int, ...] = ()
    prefill_seqs: tuple[int, ...] = ()
    decode_seqs: tuple[int, ...] = ()


PASSED_OVER_MAX = 16
"""How many that wait for what others compute are looked at in a step; it bounds the step's cost."""


class Schedulable(Protocol):
    """What is asked of a sequence; nothing of it is changed."""

    @property
    def seq_id(self) -> int:
        """Its number."""
        ...

    @property
    def tokens(self) -> Ordered[int]:
        """All its tokens so far."""
        ...

    @property
    def num_tokens_max(self) -> int:
        """How long it may become."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """Those whose KV is in the cache."""
        ...


def schedule(
    waiting: Iterable[Schedulable], running: Ordered[Schedulable], cache: CacheView, config: SchedulerConfig
) -> SchedulerOutput:
    """Decide what to run in this step.

    Both are in the order of precedence; nothing is changed. Who is admitted acquires a table with room for all it may
    become (`reserve`) or for what it is now (`preempt`). Who is preempted lets go of its table, to wait in front of
    all others.
    """
    step = _Step(cache=cache, config=config, budget=config.max_tokens_per_batch, available=cache.num_available)
    # A copy that victims are taken from, from its end.
    remaining = list(running)
    for index, sequence in enumerate(running):
        if index < len(remaining) and len(sequence.tokens) - sequence.num_computed_tokens == 1:
            step.decode(sequence, remaining)
    for sequence in remaining:
        if len(sequence.tokens) - sequence.num_computed_tokens > 1:
            step.prefill(sequence, sequence.num_computed_tokens)
    # Whoever had to make room would be back at once and throw out the next.
    if not step.preempted:
        _admit(step, waiting, remaining)
    return step.output()


def _admit(step: _Step, waiting: Iterable[Schedulable], running: Ordered[Schedulable]) -> None:
    """Let in, in order, those for whom there are a seat, tokens and blocks."""
    seats = step.config.max_batch_size - len(running)
    busy = [sequence for sequence in running if len(sequence.tokens) - sequence.num_computed_tokens > 1]
    passed_over = 0
    for sequence in waiting:
        if seats == 0 or passed_over > PASSED_OVER_MAX or not step.has_budget():
            return
        hit = step.cache.lookup(sequence.tokens)
        if step.config.prefix_caching and _is_underway(sequence, hit.num_tokens, busy, step.config.block_size):
            passed_over += 1
            continue
        wanted = sequence.num_tokens_max if step.config.admission == "reserve" else len(sequence.tokens)
        fresh = blocks_for(wanted, step.config.block_size) - hit.num_tokens // step.config.block_size
        if fresh + hit.num_idle_blocks > step.available:
            return
        if not step.prefill(sequence, hit.num_tokens):
            return
        step.available -= fresh + hit.num_idle_blocks
        step.admitted.append(sequence.seq_id)
        busy.append(sequence)
        seats -= 1


def _is_underway(sequence: Schedulable, num_found: int, busy: Ordered[Schedulable], block_size: int) -> bool:
    """Whether somebody is just computing the block that this one would begin with: then it waits, and finds it."""
    end = num_found + block_size
    if end >= len(sequence.tokens):
        return False
    wanted = sequence.tokens[:end]
    return any(len(other.tokens) >= end and other.tokens[:end] == wanted for other in busy)


@dataclass(slots=True, kw_only=True)
class _Step:
    """A decision in the making."""

    cache: CacheView
    config: SchedulerConfig
    budget: int
    available: int
    prefills: list[Work] = field(default_factory=list)
    decodes: list[Work] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    def has_budget(self) -> bool:
        """Whether a piece of a prompt could be computed still."""
        return self.budget > 0

    def decode(self, sequence: Schedulable, remaining: list[Schedulable]) -> None:
        """Compute one token, at the cost of the latest sequences if there is no block for it."""
        if self.budget == 0:
            return
        num_blocks = blocks_for(len(sequence.tokens), self.config.block_size)
        needed = max(num_blocks - self.cache.num_held(sequence.seq_id), 0)
        while needed > self.available:
            victim = remaining.pop()
            self.available += self.cache.num_reclaimed(victim.seq_id)
            self.preempted.append(victim.seq_id)
            if victim is sequence:
                return
        self.available -= needed
        self.budget -= 1
        self.decodes.append(Work(sequence.seq_id, 1))

    def prefill(self, sequence: Schedulable, num_computed: int) -> bool:
        """Compute as many tokens as the budget allows; whether there were any."""
        missing = min(len(sequence.tokens) - num_computed, self.budget)
        if missing <= 0:
            return False
        self.budget -= missing
        self.prefills.append(Work(sequence.seq_id, missing))
        return True

    def output(self) -> SchedulerOutput:
        """The decision."""
        return SchedulerOutput(
            work=(*self.decodes, *self.prefills),
            admitted_seqs=tuple(self.admitted),
            preempted_seqs=tuple(self.preempted),
            prefill_seqs=tuple(work.seq_id for work in self.prefills),
            decode_seqs=tuple(work.seq_id for work in self.decodes),
        )
