"""What the next step computes: a pure function of the waiting and running sequences and the cache.

There is one rule. Each step computes the tokens that have no KV yet, running sequences first, up to a token budget. Of
the running ones, those that lack a single token come first. Long prompts in pieces, prefixes found in the cache and
preempted sequences all follow from this rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mac_runner.nano.cache import KVCache, blocks_for
from mac_runner.nano.config import SchedulerConfig

PASSED_OVER_MAX = 16
"""Sequences that wait for another's KV and are looked at in a step; it bounds the step's cost."""


class Work(NamedTuple):
    """The number of tokens of a sequence that a step computes."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOutput:
    """The decision for one step."""

    work: tuple[Work, ...] = ()
    admitted_seqs: tuple[int, ...] = ()
    preempted_seqs: tuple[int, ...] = ()
    prefill_seqs: tuple[int, ...] = ()
    decode_seqs: tuple[int, ...] = ()


class Schedulable(Protocol):
    """What `schedule` reads of a sequence."""

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
        """The longest it may become."""
        ...

    @property
    def num_computed_tokens(self) -> int:
        """The number of tokens whose KV is in the cache."""
        ...


def schedule(
    waiting: Iterable[Schedulable], running: Ordered[Schedulable], cache: KVCache, config: SchedulerConfig
) -> SchedulerOutput:
    """Decide what to run in this step.

    Both are in order of precedence; nothing is changed. The caller gives each admitted sequence a table with room for
    all it may become (`reserve`) or for what it is now (`preempt`). It takes the tables of preempted sequences back,
    and puts them before all others that wait.
    """
    step = _Step(cache=cache, config=config, budget=config.max_tokens_per_batch, available=cache.num_available)
    # A copy; victims are taken from its end.
    remaining = list(running)
    for index, sequence in enumerate(running):
        if index < len(remaining) and len(sequence.tokens) - sequence.num_computed_tokens == 1:
            step.decode(sequence, remaining)
    for sequence in remaining:
        if len(sequence.tokens) - sequence.num_computed_tokens > 1:
            step.prefill(sequence, sequence.num_computed_tokens)
    # A preempted sequence would otherwise return at once and preempt the next.
    if not step.preempted:
        _admit(step, waiting, remaining)
    return step.output()


def _admit(step: _Step, waiting: Iterable[Schedulable], running: Ordered[Schedulable]) -> None:
    """Admit sequences in order while there are seats, tokens and blocks."""
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
    """Whether another sequence is computing this one's next block: then it waits, and finds the block."""
    end = num_found + block_size
    if end >= len(sequence.tokens):
        return False
    wanted = sequence.tokens[:end]
    return any(len(other.tokens) >= end and other.tokens[:end] == wanted for other in busy)


@dataclass(slots=True, kw_only=True)
class _Step:
    """The decision while it is made."""

    cache: KVCache
    config: SchedulerConfig
    budget: int
    available: int
    prefills: list[Work] = field(default_factory=list)
    decodes: list[Work] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    def has_budget(self) -> bool:
        """Whether a piece of a prompt could still be computed."""
        return self.budget > 0

    def decode(self, sequence: Schedulable, remaining: list[Schedulable]) -> None:
        """Compute one token; if there is no block for it, preempt the latest sequences."""
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
