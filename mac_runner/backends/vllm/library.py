"""The parts of an imported vLLM that are used, by their names in this release.

Nothing else of the package names a module of vLLM, so a release that moves something is met here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

from mac_runner.backends.vllm.protocols import Engine, EngineConfig, ReasoningParser, Tokenizer
from mac_runner.errors import EngineCrashedError, RequestRefusedError, TransientBackendError
from mac_runner.types import JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClasses:
    """What vLLM raises about a request: `base`, and of it the `client`'s fault and a `dead` engine."""

    base: type[Exception]
    client: type[Exception]
    dead: type[Exception]

    @contextmanager
    def verdicts(self, told: Callable[[], str]) -> Iterator[None]:
        """Turn vLLM's errors about a request into ours; others pass. `told` has more to say of an engine that died."""
        try:
            yield
        except self.dead as fault:
            raise EngineCrashedError(f"vLLM's engine process has ended; {told()}") from fault
        except self.client as fault:
            raise RequestRefusedError(f"vLLM refuses the request: {fault}") from fault
        except self.base as fault:
            reason = fault.__cause__ or fault  # It wraps what it met on the way in an error without a word.
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
        """The configuration of an engine with these arguments. Raises whatever vLLM raises for a wrong one."""
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
        # What it is told beside its configuration.
        told = {name: settings[name] for name in ("disable_log_stats", "enable_log_requests") if name in settings}
        found: Engine = self._engine.AsyncLLM.from_vllm_config(config, **told)
        return found

    def tokenizer(self, config: EngineConfig) -> Tokenizer:
        """The tokenizer of the model."""
        found: Tokenizer = self._tokenizers.cached_tokenizer_from_config(config.model_config)
        return found

    def reasoning_parser(self, config: EngineConfig, settings: Mapping[str, object]) -> ReasoningParser | None:
        """What the engine finds the end of a thought with; None where it does not look for one."""
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
        """vLLM's sampling parameters; `json` or `choice` among the settings constrain the reply."""
        constraint = {"json": settings.get("json"), "choice": settings.get("choice")}
        kept = {key: value for key, value in settings.items() if key not in constraint}
        if any(value is not None for value in constraint.values()):
            kept["structured_outputs"] = self._sampling.StructuredOutputsParams(**constraint)
        return self._sampling.SamplingParams(**kept, output_kind=self._sampling.RequestOutputKind.FINAL_ONLY)
