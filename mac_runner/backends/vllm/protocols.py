"""What is used of vLLM's objects, and nothing else of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from mac_runner.types import JsonValue


class Tokenizer(Protocol):
    """What is asked of the model's own tokenizer."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str | list[int]:
        """A conversation as text or as tokens, ending where the reply begins."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The text's token ids."""
        ...

    def decode(self, ids: list[int], /) -> str:
        """The text of token ids, special tokens and all."""
        ...


class EngineTokenizer(Tokenizer, Protocol):
    """The one that an engine has. Unlike any other it may be used on several threads."""

    @property
    def all_special_tokens(self) -> Sequence[str]:
        """The tokens that the engine leaves out of a text unless it is told otherwise."""
        ...


class ReasoningParser(Protocol):
    """What tells vLLM's engine where a thought ends, and the form of a constrained reply begins."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether a prompt leaves no thought open, so that the reply is held to its form from its first token."""
        ...


class Completion(Protocol):
    """One finished completion."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, Logprob]] | None
    finish_reason: str | None


class Logprob(Protocol):
    """How likely a token was."""

    logprob: float


class Output(Protocol):
    """A finished request."""

    outputs: Sequence[Completion]
    num_cached_tokens: int | None


class CacheConfig(Protocol):
    """The KV cache as the engine laid it out, once it runs."""

    num_gpu_blocks: int | None
    block_size: int
    kv_cache_size_tokens: int | None


class ModelConfig(Protocol):
    """The model as the engine runs it."""

    max_model_len: int

    def get_diff_sampling_param(self) -> dict[str, JsonValue]:
        """The sampling settings that the model's own generation config asks for."""
        ...


class ParallelConfig(Protocol):
    """Over what the engine is spread."""

    data_parallel_size: int


class SchedulerConfig(Protocol):
    """The engine's own scheduler."""

    max_num_seqs: int


class StructuredOutputsConfig(Protocol):
    """How replies are held to a form. Without a `reasoning_parser` its name is empty."""

    reasoning_parser: str
    enable_in_reasoning: bool


class EngineConfig(Protocol):
    """The engine's configuration."""

    cache_config: CacheConfig
    model_config: ModelConfig
    parallel_config: ParallelConfig
    scheduler_config: SchedulerConfig
    structured_outputs_config: StructuredOutputsConfig


class Engine(Protocol):
    """A running engine."""

    vllm_config: EngineConfig

    def generate(
        self,
        prompt: object,
        sampling_params: object,
        request_id: str,
        *,
        reasoning_parser_kwargs: Mapping[str, object] | None = None,
    ) -> AsyncGenerator[Output, None]:
        """The outputs of one request; closing or cancelling it takes the request out of the engine."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget every prompt seen so far."""
        ...

    def get_tokenizer(self) -> EngineTokenizer:
        """The model's tokenizer."""
        ...

    def shutdown(self) -> None:
        """End the engine's processes and wait for them."""
        ...
