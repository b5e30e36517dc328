"""What the next step computes: a pure function of the waiting and running sequences and the cache.

There is one rule. Each step computes the tokens that have no KV yet, up to a token budget, those first that lack a
single one. Of what is left a part goes to prompts in order of arrival, and the rest to the shortest, so a short prompt
does not wait for a long one. Long prompts in pieces, prefixes found in the cache and preempted sequences all follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mac_runner.nano.cache import KVCache, blocks_for
from mac_runner.nano.config import SchedulerConfig

PASSED_OVER_MAX = 16
"""Sequences that are looked at in a step and wait on; it bounds the step's cost."""
SHARE = 16
"""A prompt that is longer than all others of a step together has one token for so many of theirs."""
SHARE_MIN = 4
"""The tokens that it may have at least, however short the others are."""
SHORT_MAX = 32
"""A prompt without so many tokens is not cut for others: steps of few tokens take about as long."""
PARTIAL_MAX = 8
"""Prompts under way at most for which a shorter one joins them."""


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
    def seq_id(self) -> int: ...

    @property
    def tokens(self) -> Ordered[int]: ...

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
        if (missing := len(sequence.tokens) - sequence.num_computed_tokens) > 1:
            step.missing[sequence.seq_id] = missing
    # A preempted sequence would otherwise return at once and preempt the next.
    if not step.preempted:
        _admit(step, waiting, remaining)
    return step.output()


def _admit(step: _Step, waiting: Iterable[Schedulable], running: Ordered[Schedulable]) -> None:
    """Admit sequences in order while there are seats, tokens and blocks."""
    seats = step.config.max_batch_size - len(running)
    busy = [sequence for sequence in running if sequence.seq_id in step.missing]
    passed_over = 0
    for sequence in waiting:
        if seats == 0 or passed_over > PASSED_OVER_MAX or not step.budget:
            return
        hit = step.cache.lookup(sequence.tokens)
        is_underway = step.config.prefix_caching and _is_underway(
            sequence, hit.num_tokens, busy, step.config.block_size
        )
        missing = len(sequence.tokens) - hit.num_tokens
        if is_underway or not step.has_part(missing):
            passed_over += 1
            continue
        wanted = sequence.num_tokens_max if step.config.admission == "reserve" else len(sequence.tokens)
        fresh = blocks_for(wanted, step.config.block_size) - hit.num_tokens // step.config.block_size
        if fresh + hit.num_idle_blocks > step.available:
            return
        step.missing[sequence.seq_id] = missing
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
    """The decision while it is made. `missing` has the prompts' tokens without KV, in order of arrival."""

    cache: KVCache
    config: SchedulerConfig
    budget: int
    available: int
    missing: dict[int, int] = field(default_factory=dict)
    decodes: list[Work] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)

    def has_part(self, missing: int) -> bool:
        """Whether a prompt without so many tokens may begin: there is budget, or it is shorter than one under way."""
        others = self.missing.values()
        return sum(others) < self.budget or (len(others) < PARTIAL_MAX and missing < max(others))

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

    def output(self) -> SchedulerOutput:
        prefills = self._prefills()
        return SchedulerOutput(
            work=(*self.decodes, *prefills),
            admitted_seqs=tuple(self.admitted),
            preempted_seqs=tuple(self.preempted),
            prefill_seqs=tuple(work.seq_id for work in prefills),
            decode_seqs=tuple(work.seq_id for work in self.decodes),
        )

    def _prefills(self) -> list[Work]:
        """The pieces of prompts: a small part of the step in order of arrival, the rest for the shortest first.

        One that is longer than all others together gets a sixteenth of their tokens, so that their step is a short one:
        each of its own takes longer, because it attends to all before it.
        """
        given = dict.fromkeys(self.missing, 0)
        left = self.budget
        longest = max(self.missing.values(), default=0)
        others = sum(self.missing.values()) - longest
        if others and longest > max(others, SHORT_MAX):
            left = min(left, others + max(others // SHARE, SHARE_MIN))
        shortest = sorted(self.missing, key=self.missing.__getitem__)
        for order, share in ((list(self.missing), max(left // (SHARE + 1), 1)), (shortest, left)):
            for seq_id in order:
                piece = min(self.missing[seq_id] - given[seq_id], share, left)
                given[seq_id] += piece
                share, left = share - piece, left - piece
        return [Work(seq_id, piece) for seq_id, piece in given.items() if piece]
