"""The installed vLLM: whether it can be used, and the parts of it that are used, by their names in this release.

Nothing else of the package names a module of vLLM, so a release that moves something is met here. Finding the release
and the arguments it takes imports nothing: importing vLLM takes seconds, and a misspelt key shall be told at once.
"""

from __future__ import annotations

import ast
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from mac_runner.errors import ConfigError, EngineCrashedError, RequestRefusedError, TransientBackendError
from mac_runner.types import JsonValue

OLDEST: Final = (0, 31)
"""The oldest release whose names are these. docs/engines.md says which were run."""

_ARGUMENT_CLASSES: Final = frozenset({"EngineArgs", "AsyncEngineArgs"})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An installed vLLM that can be used: its version, and every argument that an engine of it takes."""

    version: str
    arguments: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """The parts of an imported vLLM."""

    is_cpu: bool
    engine_config: Callable[[dict[str, JsonValue]], EngineConfig]
    engine: Callable[[EngineConfig, Mapping[str, JsonValue]], Engine]
    tokenizer: Callable[[EngineConfig], Tokenizer]
    reasoning_parser: Callable[[EngineConfig, Mapping[str, object]], ReasoningParser | None]
    token_prompt: Callable[[list[int]], object]
    sampling_params: Callable[[Mapping[str, object]], object]
    error: type[Exception]
    client_error: type[Exception]
    dead_error: type[Exception]

    @contextmanager
    def verdicts(self, told: Callable[[], str]) -> Iterator[None]:
        """Turn vLLM's errors about a request into ours; others pass. `told` has more to say of an engine that died."""
        try:
            yield
        except self.dead_error as fault:
            raise EngineCrashedError(f"vLLM's engine process has ended; {told()}") from fault
        except self.client_error as fault:
            raise RequestRefusedError(f"vLLM refuses the request: {fault}") from fault
        except self.error as fault:
            reason = fault.__cause__ or fault  # It wraps what it met on the way in an error without a word.
            if isinstance(reason, ValueError | TypeError):
                raise RequestRefusedError(f"vLLM refuses the request: {reason}") from fault
            raise TransientBackendError(f"vLLM did not answer: {type(reason).__name__}: {reason}") from fault


def find_release() -> Release:
    """The installed release. Raises ConfigError when there is none, or none that can be used."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("vLLM is not installed; install mac_runner[vllm], or choose another backend")
    version = _version()
    check_version(version)
    path = Path(spec.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    arguments = argument_names(SourceFileLoader("arg_utils", str(path)).get_source("arg_utils") or "")
    if not arguments:
        raise ConfigError(f"vLLM {version} does not tell its engine arguments in {path}; install an older one")
    return Release(version=version, arguments=arguments)


def check_version(version: str) -> None:
    """Raises ConfigError for a release older than OLDEST. A newer one than was ever run may well do."""
    parts = version.split(".")[:2]
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(f"vLLM {version} is installed, and {oldest} or newer is needed; install mac_runner[vllm]")


def argument_names(source: str) -> frozenset[str]:
    """The arguments an engine takes, read off the source of vLLM's two classes of them."""
    return frozenset(
        statement.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in _ARGUMENT_CLASSES
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    )


def load_library() -> Library:
    """Import vLLM, which takes seconds."""
    arguments = import_module("vllm.engine.arg_utils")
    engine = import_module("vllm.v1.engine.async_llm")
    inputs = import_module("vllm.inputs")
    outputs_class = import_module("vllm.config").StructuredOutputsConfig
    reasoning = import_module("vllm.reasoning")
    sampling = import_module("vllm.sampling_params")
    tokenizers = import_module("vllm.tokenizers")
    errors = import_module("vllm.exceptions")
    # The defaults of vLLM's own offline class are meant for throughput, not for the first token.
    usage = import_module("vllm.usage.usage_lib").UsageContext.LLM_CLASS

    def tokenizer(config: EngineConfig) -> Tokenizer:
        found: Tokenizer = tokenizers.cached_tokenizer_from_config(config.model_config)
        return found

    def engine_config(settings: dict[str, JsonValue]) -> EngineConfig:
        if plugin := settings.get("reasoning_parser_plugin"):
            reasoning.ReasoningParserManager.import_reasoning_parser(plugin)
        # vLLM makes most sections of mappings itself; into this one it writes the reasoning parser first.
        outputs = settings.get("structured_outputs_config")
        made = {"structured_outputs_config": outputs_class(**outputs)} if isinstance(outputs, dict) else {}
        config: EngineConfig = arguments.AsyncEngineArgs(**settings | made).create_engine_config(usage)
        return config

    def started(config: EngineConfig, settings: Mapping[str, JsonValue]) -> Engine:
        # What it is told beside its configuration.
        told = {name: settings[name] for name in ("disable_log_stats", "enable_log_requests") if name in settings}
        found: Engine = engine.AsyncLLM.from_vllm_config(config, **told)
        return found

    def reasoning_parser(config: EngineConfig, settings: Mapping[str, object]) -> ReasoningParser | None:
        outputs = config.structured_outputs_config
        if not outputs.reasoning_parser or outputs.enable_in_reasoning:
            return None
        parser_class = reasoning.ReasoningParserManager.get_reasoning_parser(outputs.reasoning_parser)
        parser: ReasoningParser = parser_class(tokenizer=tokenizer(config), **settings)
        return parser

    def sampling_params(settings: Mapping[str, object]) -> object:
        constraint = {"json": settings.get("json"), "choice": settings.get("choice")}
        kept = {key: value for key, value in settings.items() if key not in constraint}
        if any(value is not None for value in constraint.values()):
            kept["structured_outputs"] = sampling.StructuredOutputsParams(**constraint)
        return sampling.SamplingParams(**kept, output_kind=sampling.RequestOutputKind.FINAL_ONLY)

    return Library(
        is_cpu=import_module("vllm.platforms").current_platform.is_cpu(),
        engine_config=engine_config,
        engine=started,
        tokenizer=tokenizer,
        reasoning_parser=reasoning_parser,
        token_prompt=lambda ids: inputs.tokens_input(prompt_token_ids=ids),
        sampling_params=sampling_params,
        error=errors.VLLMError,
        client_error=errors.VLLMClientError,
        dead_error=import_module("vllm.v1.engine.exceptions").EngineDeadError,
    )


def _version() -> str:
    """By the name it was installed under: builds for other hardware than NVIDIA's have names of their own."""
    names = metadata.packages_distributions().get("vllm", ())
    return metadata.version(names[0]) if names else "of unknown version"
