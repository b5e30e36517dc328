"""Continuous batching: the requests under way, and one step of all of them.

A step is: schedule, make room, compute, choose tokens, end what is finished. Requests join and leave between steps. An
error of one request ends that one; the others do not notice.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

import torch

from mac_runner.nano.attention import ForwardBatch, Piece, make_batch
from mac_runner.nano.cache import KVCache
from mac_runner.nano.config import SchedulerConfig
from mac_runner.nano.errors import NonFiniteLogitsError, RequestError
from mac_runner.nano.sampler import Choice, Row, choose
from mac_runner.nano.scheduler import SchedulerOutput, schedule
from mac_runner.nano.sequence import Delta, FinishReason, Sequence
from mac_runner.nano.tokenizer import Tokenizer

Forward = Callable[[ForwardBatch], torch.Tensor]
_NO_SEQUENCE = -1


@dataclass(slots=True)
class Counters:
    """What the engine has done since it began."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0


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
        self.counters.steps += 1
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
        return [self._finish(sequence, "abort", version, text=sequence.stopping.end()) for sequence in ended]

    def _make_room(self, plan: SchedulerOutput) -> None:
        """Move sequences between waiting and running as planned, and give each its blocks."""
        for seq_id in plan.preempted_seqs:
            sequence = self.running.pop(seq_id)
            self.cache.release(seq_id)
            sequence.num_computed_tokens = 0
            self.waiting[seq_id] = sequence
            self.waiting.move_to_end(seq_id, last=False)
            self.counters.preemptions += 1
        for seq_id in plan.decode_seqs:
            self.cache.extend(seq_id, self.running[seq_id].num_tokens)
        for seq_id in plan.admitted_seqs:
            sequence = self.waiting.pop(seq_id)
            reserved = sequence.num_tokens_max if self._config.admission == "reserve" else sequence.num_tokens
            found = self.cache.acquire(seq_id, sequence.tokens, reserved)
            sequence.num_computed_tokens = found.cached_length
            if not sequence.logprobs:
                sequence.num_cached_tokens = found.cached_length
                self.counters.prompt_tokens += sequence.num_prompt_tokens
                self.counters.cached_prompt_tokens += found.cached_length
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
        self.counters.completion_tokens += sum(isinstance(choice, Choice) for choice in choices)
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
            return self._finish(sequence, "error", version, text=sequence.stopping.end(), error=error)
        sequence.append(choice.token_id, choice.logprob, choice.top, version)
        text, reason, stop_reason = sequence.stopping.push(choice.token_id, is_full=sequence.is_full)
        if reason != "stop" and sequence.constraint is not None and sequence.constraint.is_complete:
            reason, text = "stop", text + sequence.stopping.end()
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
        """The whole text of a finished completion."""
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
