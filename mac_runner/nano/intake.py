"""What comes before a request is queued: `Intake` finds what is wrong with it, and makes numbered sequences of it."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from random import Random

from mac_runner.nano.architecture import ModelConfig
from mac_runner.nano.cache import blocks_for
from mac_runner.nano.config import EngineConfig
from mac_runner.nano.constraints import Grammar, GrammarCompiler
from mac_runner.nano.errors import InvalidRequestError, PromptTooLongError
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.sequence import Sequence, StopChecker
from mac_runner.nano.tokenizer import TextStream, Tokenizer

Prompt = str | Ordered[int]
SAMPLES_MAX = 1024


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
        """The next request's number."""
        number, self._num_requests = self._num_requests, self._num_requests + 1
        return number

    def sequences(self, request: PreparedRequest, request_id: int | None = None) -> list[Sequence]:
        """The sequences of a new request, all of one `request_id`: by default the next number."""
        request_id = self.number() if request_id is None else request_id
        first, self._num_sequences = self._num_sequences, self._num_sequences + request.num_samples
        return [self._sequence(request, first + index, request_id, index) for index in range(request.num_samples)]

    def _sequence(self, request: PreparedRequest, seq_id: int, request_id: int, index: int) -> Sequence:
        return Sequence(
            seq_id=seq_id,
            request_id=request_id,
            sample_index=index,
            tokens=list(request.tokens),
            num_prompt_tokens=len(request.tokens),
            num_tokens_max=request.num_tokens_max,
            params=request.params,
            random=Random(self._seed(request.params, request_id, index)),  # noqa: S311  Not for secrets.
            stopping=self._stopping(request),
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

    def _stopping(self, request: PreparedRequest) -> StopChecker:
        """The check of each token; it decodes text only for requests that need it."""
        wanted = self._tokenizer if request.params.stop or request.is_streamed else None
        stream = TextStream(wanted) if wanted is not None else None
        return StopChecker(params=request.params, eos_token_ids=self._eos_token_ids, stream=stream)
