"""Continuous batching: what the next step computes (`schedule`, a pure function), and one step of all requests.

There is one rule. Each step computes the tokens that have no KV yet, up to a token budget, those first that lack a
single one. Of what is left a part goes to prompts in order of arrival, and the rest to the shortest, so a short prompt
does not wait for a long one. Long prompts in pieces, prefixes found in the cache and preempted sequences all follow.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import torch

from mac_runner.nano.attention import ForwardBatch, Piece, make_batch
from mac_runner.nano.cache import KVCache, blocks_for
from mac_runner.nano.config import SchedulerConfig
from mac_runner.nano.errors import NonFiniteLogitsError, RequestError
from mac_runner.nano.sampler import Choice, Row, choose
from mac_runner.nano.sequence import Delta, FinishReason, Sequence
from mac_runner.nano.tokenizer import Tokenizer

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
Forward = Callable[[ForwardBatch], torch.Tensor]
_NO_SEQUENCE = -1


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


@dataclass(slots=True)
class Counters:
    """What the engine has done since it began."""

    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    num_preemptions: int = 0


class ContinuousBatch:
    """The waiting and the running sequences, each in order of precedence."""

    def __init__(self, cache: KVCache, config: SchedulerConfig, forward: Forward, tokenizer: Tokenizer | None) -> None:
        self.cache = cache
        self.counters = Counters()
        self.waiting = OrderedDict[int, Sequence]()
        self.running = OrderedDict[int, Sequence]()
        self._config = config
        self._forward = forward
        self._tokenizer = tokenizer

    def add(self, sequences: Iterable[Sequence]) -> None:
        self.waiting.update((sequence.seq_id, sequence) for sequence in sequences)

    def step(self, version: int, *, admits: bool = True) -> list[Delta]:
        """Compute some tokens of some sequences, with weights of this version."""
        plan = schedule(self.waiting.values() if admits else (), list(self.running.values()), self.cache, self._config)
        if not plan.work:
            return []
        self._make_room(plan)
        batch = make_batch(self._pieces(plan), self._config.block_size)
        logits = self._forward(batch)
        self.counters.num_steps += 1
        return self._advance(plan, logits, version)

    def idle(self) -> None:
        """Compute one token for no sequence, in a block that none holds. Nothing may be running."""
        block_ids = self.cache.acquire(_NO_SEQUENCE, (0,), 1).block_ids
        try:
            self._forward(make_batch([Piece((0,), 0, 1, block_ids)], self._config.block_size))
        finally:
            self.cache.release(_NO_SEQUENCE)

    def abort(self, request_id: int | None, version: int) -> list[Delta]:
        """End a request, or all of them, with the tokens they have."""
        ended = [
            sequence
            for group in (self.running, self.waiting)
            for sequence in group.values()
            if request_id is None or sequence.request_id == request_id
        ]
        return [self._finish(sequence, "abort", version, text=sequence.stopping.finish()) for sequence in ended]

    def _make_room(self, plan: SchedulerOutput) -> None:
        """Move sequences between waiting and running as planned, and give each its blocks."""
        for seq_id in plan.preempted_seqs:
            sequence = self.running.pop(seq_id)
            self.cache.release(seq_id)
            sequence.num_computed_tokens = 0
            self.waiting[seq_id] = sequence
            self.waiting.move_to_end(seq_id, last=False)
            self.counters.num_preemptions += 1
        for seq_id in plan.decode_seqs:
            self.cache.extend(seq_id, self.running[seq_id].num_tokens)
        for seq_id in plan.admitted_seqs:
            sequence = self.waiting.pop(seq_id)
            reserved = sequence.num_tokens_max if self._config.admission == "reserve" else sequence.num_tokens
            found = self.cache.acquire(seq_id, sequence.tokens, reserved)
            sequence.num_computed_tokens = found.cached_length
            if not sequence.logprobs:
                sequence.num_cached_tokens = found.cached_length
                self.counters.num_prompt_tokens += sequence.num_prompt_tokens
                self.counters.num_cached_prompt_tokens += found.cached_length
            self.running[seq_id] = sequence

    def _pieces(self, plan: SchedulerOutput) -> Iterable[Piece]:
        for seq_id, num_tokens in plan.work:
            sequence = self.running[seq_id]
            yield Piece(sequence.tokens, sequence.num_computed_tokens, num_tokens, self.cache.block_ids(seq_id))

    def _advance(self, plan: SchedulerOutput, logits: torch.Tensor, version: int) -> list[Delta]:
        """Choose a token for each sequence that is fully computed, then record what was computed.

        In this order, a step that is interrupted while tokens are chosen has changed nothing, and can be repeated.
        """
        work = [(self.running[seq_id], num_tokens) for seq_id, num_tokens in plan.work]
        computed = [sequence for sequence, num_tokens in work if sequence.num_uncomputed_tokens == num_tokens]
        choices = _choose(computed, logits)
        for sequence, num_tokens in work:
            sequence.num_computed_tokens += num_tokens
            if self._config.prefix_caching:
                self.cache.register(sequence.seq_id, sequence.tokens, sequence.num_computed_tokens)
        self.counters.num_completion_tokens += sum(isinstance(choice, Choice) for choice in choices)
        deltas = (self._give(sequence, choice, version) for sequence, choice in zip(computed, choices, strict=True))
        return [delta for delta in deltas if delta is not None]

    def _give(self, sequence: Sequence, choice: Choice | RequestError, version: int) -> Delta | None:
        """Add a token to a sequence, or end it with its error; the delta for the caller, if there is one."""
        try:
            if isinstance(choice, RequestError):
                raise choice
            if not math.isfinite(choice.logprob):
                raise NonFiniteLogitsError(
                    f"the model computed no numbers for token {sequence.num_tokens} of this request"
                )
            if sequence.constraint is not None:
                sequence.constraint.accept(choice.token_id)
        except RequestError as error:
            return self._finish(sequence, "error", version, text=sequence.stopping.finish(), error=error)
        sequence.append(choice.token_id, choice.logprob, choice.top, version)
        text, reason, stop_reason = sequence.stopping.push(choice.token_id, is_full=sequence.is_full)
        if reason != "stop" and sequence.constraint is not None and sequence.constraint.is_complete:
            reason, text = "stop", text + sequence.stopping.finish()
        if reason is not None:
            return self._finish(sequence, reason, version, text=text, stop_reason=stop_reason, choice=choice)
        if not sequence.is_streamed:
            return None
        return _delta(sequence, choice, text)

    def _finish(
        self,
        sequence: Sequence,
        reason: FinishReason,
        version: int,
        *,
        text: str,
        stop_reason: int | str | None = None,
        choice: Choice | None = None,
        error: RequestError | None = None,
    ) -> Delta:
        """Take a sequence out; its last delta, with the sample."""
        if self.running.pop(sequence.seq_id, None) is not None:
            self.cache.release(sequence.seq_id)
        self.waiting.pop(sequence.seq_id, None)
        sample = sequence.finished(
            reason, version=version, text=self._text(sequence, reason), stop_reason=stop_reason, error=error
        )
        return replace(_delta(sequence, choice, text), sample=sample)

    def _text(self, sequence: Sequence, reason: FinishReason) -> str | None:
        if sequence.stopping.stream is not None:
            return sequence.stopping.shown
        if self._tokenizer is None:
            return None
        completion = sequence.tokens[sequence.num_prompt_tokens :]
        is_ended_by_token = reason == "stop" and sequence.stopping.is_final(completion[-1])
        return self._tokenizer.decode(completion[:-1] if is_ended_by_token else completion)


def _choose(sequences: Ordered[Sequence], logits: torch.Tensor) -> list[Choice | RequestError]:
    """The next token of each sequence from its row of `logits`; or the error that prevents it."""
    found = list[Row | RequestError]()
    for sequence in sequences:
        try:
            found.append(_row(sequence, logits.shape[-1]))
        except RequestError as error:
            found.append(error)
    rows = {index: row for index, row in enumerate(found) if isinstance(row, Row)}
    if len(rows) < len(found):
        logits = logits[list(rows)]
    chosen = iter(choose(logits, list(rows.values())) if rows else ())
    return [row if isinstance(row, RequestError) else next(chosen) for row in found]


def _row(sequence: Sequence, vocab_size: int) -> Row:
    """How a sequence's next token is chosen. A greedy one draws no number."""
    params = sequence.params
    return Row(
        params=params,
        uniform=0.0 if params.is_greedy else sequence.draw(),
        prompt=sequence.tokens[: sequence.num_prompt_tokens] if params.repetition_penalty != 1.0 else (),
        generated=sequence.generated,
        allowed=sequence.constraint.allowed(vocab_size) if sequence.constraint is not None else None,
    )


def _delta(sequence: Sequence, choice: Choice | None, text: str) -> Delta:
    return Delta(
        request_id=sequence.request_id,
        sample_index=sequence.sample_index,
        token_ids=(choice.token_id,) if choice else (),
        logprobs=(choice.logprob,) if choice else (),
        top_logprobs=(choice.top,) if choice and sequence.params.top_logprobs else (),
        text=text,
    )
