"""One completion: checked and numbered (`Intake`), in the making, when it stops, and the sample it becomes.

A stop text may be spread over tokens. While the end of the text could still become one it is held back, so text that
was shown never has to be taken back. A `TrainingSample` and a `Delta` are immutable and free of tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.cache import blocks_for
from mac_runner.nano.config import EngineConfig, SamplingParams
from mac_runner.nano.constraints import Constraint, Grammar, GrammarCompiler
from mac_runner.nano.errors import InvalidRequestError, PromptTooLongError, RequestError
from mac_runner.nano.tokenizer import TextStream, Tokenizer

FinishReason = Literal["stop", "length", "abort", "error"]
Prompt = str | Ordered[int]
SAMPLES_MAX = 1024


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
            return Verdict(self.finish(), "stop", token_id if token_id in self.params.stop_token_ids else None)
        if self.stream is not None:
            self.held_back += self.stream.push(token_id)
            if (found := self._first_stop()) is not None:
                return Verdict(self._show(found.start), "stop", found.stop)
        if is_full:
            return Verdict(self.finish(), "length")
        return Verdict(self._show(len(self.held_back) - num_doubtful(self.held_back, self.params.stop)))

    def is_final(self, token_id: int) -> bool:
        """Whether this token by itself ends a completion."""
        if token_id in self.params.stop_token_ids:
            return True
        return token_id in self.eos_token_ids and not self.params.ignore_eos

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

    def finish(self) -> str:
        """The text that is still held back, when a completion ends."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that can be served: its tokens, how many there may be at most, and its grammar."""

    tokens: Ordered[int]
    params: SamplingParams
    num_samples: int
    num_tokens_max: int
    grammar: Grammar | None
    is_streamed: bool
    conversation: str | None = None


class Intake:
    """Checks requests, and makes numbered sequences of them."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        model_config: ModelConfig,
        max_model_len: int,
        num_blocks: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vocab_size = model_config.vocab_size
        self._eos_token_ids = model_config.eos_token_ids
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self.compiler = GrammarCompiler(tokenizer, self._eos_token_ids)
        self._num_requests = 0
        self._num_sequences = 0

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        num_samples: int,
        is_streamed: bool,
        conversation: str | None = None,
    ) -> PreparedRequest:
        """Check a request and do what takes time. Any thread may call it. Raises RequestError."""
        tokens = self._tokens(prompt)
        if not 1 <= num_samples <= SAMPLES_MAX:
            raise InvalidRequestError(f"{num_samples} samples of a prompt; from 1 to {SAMPLES_MAX} are possible")
        num_tokens_max = self._limit(len(tokens), params)
        self._require_known(params.stop_token_ids, "stop_token_ids")
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError(
                "stop texts need a tokenizer, and this model has no tokenizer.json: use stop_token_ids"
            )
        return PreparedRequest(
            tokens=tokens,
            params=params,
            num_samples=num_samples,
            num_tokens_max=num_tokens_max,
            grammar=self.compiler.compile(params),
            is_streamed=is_streamed,
            conversation=conversation,
        )

    def number(self) -> int:
        number, self._num_requests = self._num_requests, self._num_requests + 1
        return number

    def sequences(self, request: PreparedRequest, request_id: int | None = None) -> list[Sequence]:
        """The sequences of a new request, all of one `request_id`: by default the next number."""
        request_id = self.number() if request_id is None else request_id
        first, self._num_sequences = self._num_sequences, self._num_sequences + request.num_samples
        return [self._sequence(request, first + index, request_id, index) for index in range(request.num_samples)]

    def _sequence(self, request: PreparedRequest, seq_id: int, request_id: int, index: int) -> Sequence:
        # Text is decoded at each token only for requests that need it.
        wanted = self._tokenizer if request.params.stop or request.is_streamed else None
        stream = TextStream(wanted) if wanted is not None else None
        return Sequence(
            seq_id=seq_id,
            request_id=request_id,
            sample_index=index,
            tokens=list(request.tokens),
            num_prompt_tokens=len(request.tokens),
            num_tokens_max=request.num_tokens_max,
            params=request.params,
            random=Random(self._seed(request.params, request_id, index)),  # noqa: S311  Not for secrets.
            stopping=StopChecker(params=request.params, eos_token_ids=self._eos_token_ids, stream=stream),
            constraint=request.grammar.constraint() if request.grammar is not None else None,
            is_streamed=request.is_streamed,
        )

    def _tokens(self, prompt: Prompt) -> Ordered[int]:
        tokens = self._encoded(prompt) if isinstance(prompt, str) else prompt
        if not isinstance(tokens, Ordered):
            raise InvalidRequestError(f"the prompt is of type {type(prompt).__name__}: give a text or a list of tokens")
        if not tokens:
            raise InvalidRequestError("the prompt is empty: give it at least one token")
        self._require_known(tokens, "the prompt")
        return tokens

    def _require_known(self, token_ids: Iterable[int], place: str) -> None:
        for token_id in token_ids:
            if type(token_id) is not int or not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(f"token {token_id!r} in {place}; the model knows 0 to {self._vocab_size - 1}")

    def _encoded(self, text: str) -> Ordered[int]:
        if self._tokenizer is None:
            raise InvalidRequestError("a text prompt needs a tokenizer, and this model has no tokenizer.json")
        return self._tokenizer.encode(text)

    def _limit(self, num_tokens: int, params: SamplingParams) -> int:
        if num_tokens >= self._max_model_len:
            raise PromptTooLongError(
                f"the prompt has {num_tokens} tokens; the model's window of {self._max_model_len} must hold one more"
            )
        most = min(num_tokens + params.max_tokens, self._max_model_len)
        if blocks_for(most, self._config.block_size) > self._num_blocks:
            room = self._num_blocks * self._config.block_size
            raise PromptTooLongError(
                f"{most} tokens do not fit a KV cache of {room}: lower max_tokens or give it more memory"
            )
        return most

    def _seed(self, params: SamplingParams, request_id: int, index: int) -> str:
        """The seed of a sample's numbers; a text seeds the same numbers in every version of Python."""
        if params.seed is not None:
            return f"{params.seed}/{index}"
        return f"{self._config.seed}/{request_id}/{index}"
