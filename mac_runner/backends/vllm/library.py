"""The parts of vLLM that are used: their types, their names in this release, and an engine's capacity.

No other file names a module of vLLM, so a release that moves something needs changes only here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from mac_runner.backends.base import lookahead_for
from mac_runner.backends.vllm import VllmConfig
from mac_runner.errors import EngineCrashedError, RequestRefusedError, TransientBackendError
from mac_runner.types import JsonValue


class Tokenizer(Protocol):
    """The model's own tokenizer."""

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
    """The tokenizer of an engine. Unlike any other it may be used on several threads."""

    @property
    def all_special_tokens(self) -> Sequence[str]:
        """The tokens that the engine leaves out of a text by default."""
        ...


class ReasoningParser(Protocol):
    """How vLLM's engine finds the end of a thought, where the form of a constrained reply begins."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether no thought is open, so that the reply is held to its form from its first token."""
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


class VersionSpan(Protocol):
    """Tokens that weights of one version made."""

    version: str


class CacheConfig(Protocol):
    """The KV cache as the engine laid it out, once it runs."""

    num_gpu_blocks: int | None
    block_size: int
    kv_cache_size_tokens: int | None


class ModelConfig(Protocol):
    """The model as the engine runs it."""

    max_model_len: int

    def get_diff_sampling_param(self) -> dict[str, JsonValue]:
        """The sampling settings of the model's own generation config."""
        ...


class ParallelConfig(Protocol):
    """How the engine is spread over copies."""

    data_parallel_size: int


class SchedulerConfig(Protocol):
    """The engine's own scheduler."""

    max_num_seqs: int


class StructuredOutputsConfig(Protocol):
    """How replies are held to a form; `reasoning_parser` is empty where there is none."""

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
    engine_core: Any
    """Its link to its processes."""

    def generate(
        self,
        prompt: object,
        sampling_params: object,
        request_id: str,
        *,
        reasoning_parser_kwargs: Mapping[str, object] | None = None,
    ) -> AsyncGenerator[Output, None]:
        """The outputs of one request; closing or cancelling it removes the request from the engine."""
        ...

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. Running requests are computed again where that is asked for."""
        ...

    async def pause_generation(self, *, mode: str) -> None:
        """Take no step until it is resumed; `keep` leaves requests as they are."""
        ...

    async def resume_generation(self) -> None:
        """Go on."""
        ...

    async def collective_rpc(self, method: str, *, kwargs: Mapping[str, str]) -> object:
        """Call a method of each worker."""
        ...

    async def update_weight_version(self, new_version: str) -> None:
        """Say which version the weights have; replies carry it."""
        ...

    def get_tokenizer(self) -> EngineTokenizer:
        """The model's tokenizer."""
        ...

    def shutdown(self) -> None:
        """End the engine's processes, first in good order and after seconds by force, which is not waited for."""
        ...


def kill(engine: Engine) -> None:
    """Kill the processes that vLLM started for an engine; their workers end with them."""
    resources = engine.engine_core.resources
    processes = [*getattr(resources.engine_manager, "processes", ())]  # Those of Ray are none of ours.
    if resources.coordinator is not None:
        processes.append(resources.coordinator.proc)
    for process in processes:
        process.kill()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What an engine takes, as it reports after its start."""

    requests: int
    lookahead: int
    """Further requests, which wait inside it."""
    token_budget: int | None
    """The tokens of all requests, where admission goes by tokens."""
    context_tokens: int
    """The tokens of one request."""


def capacity_of(config: VllmConfig, engine: EngineConfig) -> Capacity:
    """By tokens: as many requests as configured, while their tokens fit. Else as many as fit at full length."""
    copies = engine.parallel_config.data_parallel_size
    slots = engine.scheduler_config.max_num_seqs * copies
    tokens, context_tokens = cache_tokens(engine), engine.model_config.max_model_len
    is_by_tokens = config.admission == "token_budget"
    requests = min(config.max_num_seqs_upper_bound, slots)
    if not is_by_tokens:
        requests = max(1, min(requests, tokens // copies // context_tokens * copies))  # A request is in one copy.
    # With a spare slot in each copy the engine would serve further requests, beyond the bound.
    keeps_waiting = requests > slots - copies
    return Capacity(
        requests=requests,
        lookahead=lookahead_for(requests) if keeps_waiting else 0,
        token_budget=tokens if is_by_tokens else None,
        context_tokens=context_tokens,
    )


def cache_tokens(engine: EngineConfig) -> int:
    """How many tokens the KV caches of all copies hold.

    Blocks times their size is right only for models that keep all tokens of all layers alike. Where vLLM reports
    what one copy holds, that counts.
    """
    cache = engine.cache_config
    if cache.kv_cache_size_tokens is not None:
        return cache.kv_cache_size_tokens * engine.parallel_config.data_parallel_size
    return (cache.num_gpu_blocks or 0) * cache.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClasses:
    """vLLM's errors about a request: `base`, and below it the `client`'s fault and a `dead` engine."""

    base: type[Exception]
    client: type[Exception]
    dead: type[Exception]

    @contextmanager
    def verdicts(self, hint: Callable[[], str]) -> Iterator[None]:
        """Turn vLLM's errors about a request into BackendErrors; others pass. `hint` says why an engine died."""
        try:
            yield
        except self.dead as fault:
            raise EngineCrashedError(f"vLLM's engine process has ended; {hint()}") from fault
        except self.client as fault:
            raise RequestRefusedError(f"vLLM refuses the request: {fault}") from fault
        except self.base as fault:
            reason = fault.__cause__ or fault  # It wraps some errors in one without a text.
            if isinstance(reason, ValueError | TypeError):
                raise RequestRefusedError(f"vLLM refuses the request: {reason}") from fault
            raise TransientBackendError(f"vLLM did not answer: {type(reason).__name__}: {reason}") from fault


class Library:
    """An imported vLLM. Making it imports the package, which takes seconds."""

    def __init__(self) -> None:
        self._arguments = import_module("vllm.engine.arg_utils")
        self._engine = import_module("vllm.v1.engine.async_llm")
        self._inputs = import_module("vllm.inputs")
        self._reasoning = import_module("vllm.reasoning")
        self._sampling = import_module("vllm.sampling_params")
        self._tokenizers = import_module("vllm.tokenizers")
        self._outputs_config = import_module("vllm.config").StructuredOutputsConfig
        # The defaults of vLLM's own offline class are meant for throughput, not for the first token.
        self._usage = import_module("vllm.usage.usage_lib").UsageContext.LLM_CLASS
        errors = import_module("vllm.exceptions")
        dead = import_module("vllm.v1.engine.exceptions").EngineDeadError
        self.errors = ErrorClasses(base=errors.VLLMError, client=errors.VLLMClientError, dead=dead)
        self.is_cpu: bool = import_module("vllm.platforms").current_platform.is_cpu()

    def engine_config(self, settings: Mapping[str, JsonValue]) -> EngineConfig:
        """The configuration of an engine with these arguments. Raises any error of vLLM's for a wrong one."""
        if plugin := settings.get("reasoning_parser_plugin"):
            self._reasoning.ReasoningParserManager.import_reasoning_parser(plugin)
        # vLLM makes most sections of mappings itself; into this one it writes the reasoning parser first.
        outputs = settings.get("structured_outputs_config")
        made = {"structured_outputs_config": self._outputs_config(**outputs)} if isinstance(outputs, dict) else {}
        arguments = self._arguments.AsyncEngineArgs(**{**settings, **made})
        config: EngineConfig = arguments.create_engine_config(self._usage)
        return config

    def engine(self, config: EngineConfig, settings: Mapping[str, JsonValue]) -> Engine:
        """A running engine, which takes as long as its model takes to load."""
        # These two are not part of its configuration.
        more = {name: settings[name] for name in ("disable_log_stats", "enable_log_requests") if name in settings}
        found: Engine = self._engine.AsyncLLM.from_vllm_config(config, **more)
        return found

    def tokenizer(self, config: EngineConfig) -> Tokenizer:
        """The tokenizer of the model."""
        found: Tokenizer = self._tokenizers.cached_tokenizer_from_config(config.model_config)
        return found

    def reasoning_parser(self, config: EngineConfig, settings: Mapping[str, object]) -> ReasoningParser | None:
        """The engine's parser for the end of a thought; None where it does not look for one."""
        outputs = config.structured_outputs_config
        if not outputs.reasoning_parser or outputs.enable_in_reasoning:
            return None
        parser_class = self._reasoning.ReasoningParserManager.get_reasoning_parser(outputs.reasoning_parser)
        parser: ReasoningParser = parser_class(tokenizer=self.tokenizer(config), **settings)
        return parser

    def token_prompt(self, ids: list[int]) -> object:
        """A prompt given as tokens."""
        return self._inputs.tokens_input(prompt_token_ids=ids)

    def sampling_params(self, settings: Mapping[str, object]) -> object:
        """vLLM's sampling parameters; `json`, `json_object` or `choice` among the settings constrain the reply."""
        constraint = {key: settings[key] for key in ("json", "json_object", "choice") if key in settings}
        kept = {key: value for key, value in settings.items() if key not in constraint}
        if constraint:
            kept["structured_outputs"] = self._sampling.StructuredOutputsParams(**constraint)
        return self._sampling.SamplingParams(**kept, output_kind=self._sampling.RequestOutputKind.FINAL_ONLY)
