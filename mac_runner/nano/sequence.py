"""One completion: in the making, when it stops, and the sample it becomes.

A `Sequence` is mutable and grows by a token a step; other modules decide what happens to it. A `StopChecker` finds
its end. A stop text may be spread over tokens. While the end of the text could still become one it is held back, so
text that was shown never has to be taken back. A `TrainingSample` and a `Delta` are immutable and free of tensors: they
can be kept, sent and pickled.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from mac_runner.nano.constraints import Constraint
from mac_runner.nano.errors import RequestError
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.tokenizer import TextStream

FinishReason = Literal["stop", "length", "abort", "error"]


class VersionSpan(NamedTuple):
    """The version of the weights from the completion's token `start` on."""

    version: int
    start: int


class TokenLogprob(NamedTuple):
    """A token that could have been chosen, and its log-probability."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One finished completion.

    `logprobs` are of the model's own distribution, before penalties, temperature and constraints, in float32. The
    token that ended the completion belongs to it; `text` leaves out that token, a stop text and what follows it.
    `weight_version` is that of the first token; `version_spans` has all versions, if the weights changed meanwhile.
    `ref_logprobs` is for another model's log-probabilities: the engine leaves it empty.
    """

    prompt_tokens: tuple[int, ...]
    completion_tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: FinishReason
    ref_logprobs: tuple[float, ...] | None = None
    request_id: int = 0
    sample_index: int = 0
    text: str | None = None
    stop_reason: int | str | None = None
    """The stop token or stop text that ended it; None where the model ended its turn."""
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    version_spans: tuple[VersionSpan, ...] = ()
    num_cached_tokens: int = 0
    """The prompt tokens that were found in the prefix cache."""
    error: RequestError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added to one sample; the last one carries the sample. Only streamed requests have a `text`."""

    request_id: int
    sample_index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    text: str = ""
    sample: TrainingSample | None = None


class Verdict(NamedTuple):
    """The text that a token completes, and whether it is the last token."""

    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class _Found(NamedTuple):
    """A stop text in the text held back; the smallest in this order counts."""

    end: int
    start: int
    stop: str


@dataclass(slots=True, kw_only=True)
class StopChecker:
    """Checks each token of one completion. Without `stream` there is no text, and only token ids can stop it."""

    params: SamplingParams
    eos_token_ids: frozenset[int]
    stream: TextStream | None = None
    shown: str = ""
    held_back: str = ""

    def push(self, token_id: int, *, is_full: bool) -> Verdict:
        """The verdict on the next token; `is_full` means that no further one may follow."""
        if self.is_final(token_id):
            return Verdict(self._finish(), "stop", token_id if token_id in self.params.stop_token_ids else None)
        if self.stream is not None:
            self.held_back += self.stream.push(token_id)
            if (found := self._first_stop()) is not None:
                return Verdict(self._show(found.start), "stop", found.stop)
        if is_full:
            return Verdict(self._finish(), "length")
        return Verdict(self._show(len(self.held_back) - num_doubtful(self.held_back, self.params.stop)))

    def is_final(self, token_id: int) -> bool:
        """Whether this token by itself ends a completion."""
        if token_id in self.params.stop_token_ids:
            return True
        return token_id in self.eos_token_ids and not self.params.ignore_eos

    def end(self) -> str:
        """The text that is still held back, when a completion ends for another reason."""
        return self._finish()

    def _first_stop(self) -> _Found | None:
        """The stop text that is complete first; of several, the longest.

        So the end of a completion does not depend on how its text was cut into tokens.
        """
        starts = ((self.held_back.find(stop), stop) for stop in self.params.stop)
        return min((_Found(start + len(stop), start, stop) for start, stop in starts if start >= 0), default=None)

    def _show(self, num_chars: int) -> str:
        text, self.held_back = self.held_back[:num_chars], self.held_back[num_chars:]
        self.shown += text
        return text

    def _finish(self) -> str:
        if self.stream is not None:
            self.held_back += self.stream.finish()
        # Half a character at the end may have completed a stop text.
        found = self._first_stop()
        return self._show(len(self.held_back) if found is None else found.start)


def num_doubtful(text: str, marks: tuple[str, ...]) -> int:
    """The number of characters at the end of a text that could begin one of these marks."""
    longest = max(map(len, marks), default=0)
    for size in range(min(longest - 1, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """A prompt and its completion so far.

    `num_computed_tokens` is the number of tokens whose KV is in the cache. A step computes some of the others. When all
    are computed, the logits of the last one give the next token.
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
    generated: Counter[int] = field(default_factory=Counter)
    drawn: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_uncomputed_tokens(self) -> int:
        """The tokens that have no KV yet; 1 while tokens are generated."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def is_full(self) -> bool:
        return len(self.tokens) >= self.num_tokens_max

    def draw(self) -> float:
        """The number in [0, 1) that decides the next token; it stays the same until there is a token."""
        if self.drawn is None:
            self.drawn = self.random.random()
        return self.drawn

    def append(self, token_id: int, logprob: float, top: tuple[TokenLogprob, ...], version: int) -> None:
        if not self.spans or self.spans[-1].version != version:
            self.spans.append(VersionSpan(version, len(self.logprobs)))
        self.tokens.append(token_id)
        self.drawn = None
        self.logprobs.append(logprob)
        if self.params.top_logprobs:
            self.top_logprobs.append(top)
        if self.params.has_penalties:
            self.generated[token_id] += 1

    def finished(
        self,
        reason: FinishReason,
        *,
        version: int,
        text: str | None,
        stop_reason: int | str | None = None,
        error: RequestError | None = None,
    ) -> TrainingSample:
        """The sample; `version` is for one without a single token."""
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
