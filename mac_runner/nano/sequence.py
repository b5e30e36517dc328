"""What the engine hands back. Immutable, and free of tensors: it can be kept, sent and pickled.

~~~~
When a completion ends, and what of its text may be shown. Pure but for the text it has seen.

A stop text may be spread over tokens. While the end of the text could still become one, it is kept back, so that what
was shown never has to be taken away.


~~~~
One completion in the making. Mutable: it grows by a token a step. What happens to it is decided elsewhere."""

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
    """From the completion's token `start` on, the weights were of this version."""

    version: int
    start: int


class TokenLogprob(NamedTuple):
    """A token that could have been chosen, and how likely it was."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One finished completion.

    `logprobs` are those of the model's own distribution, before penalties, temperature and constraints, in float32.
    The token that ended the completion belongs to it; `text` leaves it out, and also the stop text and what stood
    behind it. `weight_version` is that of the first token: where weights changed meanwhile, `version_spans` has all
    of them. `ref_logprobs` is room for another model's: the engine leaves it empty.
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
    """The token or text that ended it, where it was not the end of the model's turn."""
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    version_spans: tuple[VersionSpan, ...] = ()
    num_cached_tokens: int = 0
    """How many of the prompt's tokens were found in the prefix cache."""
    error: RequestError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added to one sample; the last one carries the sample. `text` only where streaming was asked for."""

    request_id: int
    sample_index: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()
    text: str = ""
    sample: TrainingSample | None = None


class Verdict(NamedTuple):
    """What a token means: the text it lets us show, and whether it is the last."""

    text: str = ""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class _Found(NamedTuple):
    """A stop text in what is kept back; the first in this order counts."""

    end: int
    start: int
    stop: str


@dataclass(slots=True, kw_only=True)
class StopChecker:
    """Looks at each token of one completion. Without `stream` there is no text, and only token ids can stop it."""

    params: SamplingParams
    eos_token_ids: frozenset[int]
    stream: TextStream | None = None
    shown: str = ""
    kept_back: str = ""

    def push(self, token_id: int, *, is_full: bool) -> Verdict:
        """The verdict on the next token; `is_full` says that there may be no further one."""
        if self.is_final(token_id):
            return Verdict(self._finish(), "stop", token_id if token_id in self.params.stop_token_ids else None)
        if self.stream is not None:
            self.kept_back += self.stream.push(token_id)
            if (found := self._first_stop()) is not None:
                return Verdict(self._show(found.start), "stop", found.stop)
        if is_full:
            return Verdict(self._finish(), "length")
        return Verdict(self._show(len(self.kept_back) - self._num_doubtful()))

    def is_final(self, token_id: int) -> bool:
        """Whether this token by itself ends a completion."""
        if token_id in self.params.stop_token_ids:
            return True
        return token_id in self.eos_token_ids and not self.params.ignore_eos

    def end(self) -> str:
        """The text still kept back when a completion ends for a reason of its own."""
        return self._finish()

    def _first_stop(self) -> _Found | None:
        """The stop text that is complete first, and of several that are the longest.

        So where a completion ends does not depend on how its text was cut into tokens.
        """
        starts = ((self.kept_back.find(stop), stop) for stop in self.params.stop)
        return min((_Found(start + len(stop), start, stop) for start, stop in starts if start >= 0), default=None)

    def _num_doubtful(self) -> int:
        """How much of the end could be the beginning of a stop text."""
        text = self.kept_back
        longest = max((len(stop) for stop in self.params.stop), default=0)
        for size in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self.params.stop):
                return size
        return 0

    def _show(self, num_chars: int) -> str:
        text, self.kept_back = self.kept_back[:num_chars], self.kept_back[num_chars:]
        self.shown += text
        return text

    def _finish(self) -> str:
        if self.stream is not None:
            self.kept_back += self.stream.finish()
        # Half a character at the end may have completed a stop text after all.
        found = self._first_stop()
        return self._show(len(self.kept_back) if found is None else found.start)


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
