"""One completion in the making. Mutable: it grows by a token a step. What happens to it is decided elsewhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from mac_runner.nano.constraints import Constraint
from mac_runner.nano.errors import RequestError
from mac_runner.nano.outputs import FinishReason, TokenLogprob, TrainingSample, VersionSpan
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.stopping import StopChecker


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A prompt and what has been said so far.

    `num_computed_tokens` are those whose KV is in the cache. It chases `num_tokens`: a step computes some of the
    tokens in between, and when none is left the logits of the last give the next token.
    """

    seq_id: int
    request_id: int
    sample_index: int
    tokens: list[int]
    num_prompt_tokens: int
    num_tokens_max: int
    params: SamplingParams
    random: Random
    stopping: StopChecker
    constraint: Constraint | None = None
    is_streamed: bool = False
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[tuple[TokenLogprob, ...]] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    said: Counter[int] = field(default_factory=Counter)
    drawn: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and completion."""
        return len(self.tokens)

    @property
    def num_uncomputed_tokens(self) -> int:
        """How far the KV cache is behind; 1 while tokens are generated."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def is_full(self) -> bool:
        """Whether it may not grow any more."""
        return len(self.tokens) >= self.num_tokens_max

    def draw(self) -> float:
        """The number in [0, 1) that decides the next token: the same one until there is a token."""
        if self.drawn is None:
            self.drawn = self.random.random()
        return self.drawn

    def append(self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...], version: int) -> None:
        """Add a generated token."""
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(VersionSpan(version, len(self.logprobs)))
        self.tokens.append(token_id)
        self.drawn = None
        self.logprobs.append(logprob)
        if self.params.top_logprobs:
            self.top_logprobs.append(top)
        if self.params.has_penalties:
            self.said[token_id] += 1

    def finished(
        self,
        reason: FinishReason,
        *,
        version: int,
        text: str | None,
        stop_reason: int | str | None = None,
        error: RequestError | None = None,
    ) -> TrainingSample:
        """What it has come to; `version` is that of a sample without a single token."""
        return TrainingSample(
            prompt_tokens=tuple(self.tokens[: self.num_prompt_tokens]),
            completion_tokens=tuple(self.tokens[self.num_prompt_tokens :]),
            logprobs=tuple(self.logprobs),
            weight_version=self.spans[0].version if self.spans else version,
            finish_reason=reason,
            request_id=self.request_id,
            sample_index=self.sample_index,
            text=text,
            stop_reason=stop_reason,
            top_logprobs=tuple(self.top_logprobs) if self.params.top_logprobs else None,
            version_spans=tuple(self.spans),
            num_cached_tokens=self.num_cached_tokens,
            error=error,
        )
