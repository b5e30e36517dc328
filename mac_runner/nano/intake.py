"""From a request to the sequences that answer it: what can be wrong with it is found here, before it is queued."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from random import Random

from mac_runner.nano.config import EngineConfig
from mac_runner.nano.constraints import ConstraintCompiler
from mac_runner.nano.errors import InvalidRequestError, PromptTooLongError
from mac_runner.nano.kv_cache import blocks_for
from mac_runner.nano.sampling_params import SamplingParams
from mac_runner.nano.sequence import Sequence
from mac_runner.nano.stopping import StopChecker
from mac_runner.nano.tokenizer import TextStream, Tokenizer

Prompt = str | Ordered[int]
SAMPLES_MAX = 1024


class Intake:
    """Checks requests, and numbers the sequences it makes of them."""

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_model_len: int,
        num_blocks: int,
    ) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._max_model_len = max_model_len
        self._num_blocks = num_blocks
        self._compiler = ConstraintCompiler(tokenizer, eos_token_ids)
        self._num_requests = 0
        self._num_sequences = 0

    def sequences(self, prompt: Prompt, params: SamplingParams, num_samples: int, is_streamed: bool) -> list[Sequence]:
        """The sequences of a new request, all of one `request_id`."""
        tokens = self._tokens(prompt)
        if not 1 <= num_samples <= SAMPLES_MAX:
            raise InvalidRequestError(f"{num_samples} samples of a prompt; from 1 to {SAMPLES_MAX} can be had")
        num_tokens_max = self._limit(len(tokens), params)
        if params.stop and self._tokenizer is None:
            raise InvalidRequestError(
                "stop texts need a tokenizer, and this model has no tokenizer.json: use stop_token_ids"
            )
        request_id, self._num_requests = self._num_requests, self._num_requests + 1
        made = list[Sequence]()
        for index in range(num_samples):
            # Checked first, so that a request is refused as a whole.
            constraint = self._compiler.compile(params)
            made.append(
                Sequence(
                    seq_id=self._num_sequences + index,
                    request_id=request_id,
                    sample_index=index,
                    tokens=list(tokens),
                    num_prompt_tokens=len(tokens),
                    num_tokens_max=num_tokens_max,
                    params=params,
                    random=Random(self._seed(params, request_id, index)),  # noqa: S311  No secret hangs on it.
                    stopping=self._stopping(params, is_streamed),
                    constraint=constraint,
                    is_streamed=is_streamed,
                )
            )
        self._num_sequences += num_samples
        return made

    def _tokens(self, prompt: Prompt) -> Ordered[int]:
        if isinstance(prompt, str):
            if self._tokenizer is None:
                raise InvalidRequestError("a text prompt needs a tokenizer, and this model has no tokenizer.json")
            prompt = self._tokenizer.encode(prompt)
        if not prompt:
            raise InvalidRequestError("the prompt is empty: give it at least one token")
        for token_id in prompt:
            if type(token_id) is not int or not 0 <= token_id < self._vocab_size:
                raise InvalidRequestError(
                    f"token {token_id!r} in the prompt; the model knows 0 to {self._vocab_size - 1}"
                )
        return prompt

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
        """What a sample's numbers follow from; text, for then they are the same in every version of Python."""
        if params.seed is not None:
            return f"{params.seed}/{index}"
        return f"{self._config.seed}/{request_id}/{index}"

    def _stopping(self, params: SamplingParams, is_streamed: bool) -> StopChecker:
        """Text is made token by token only for those who look at it."""
        wanted = self._tokenizer if params.stop or is_streamed else None
        stream = TextStream(wanted) if wanted is not None else None
        return StopChecker(params=params, eos_token_ids=self._eos_token_ids, stream=stream)
