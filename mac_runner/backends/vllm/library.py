"""The parts of vLLM that are used: their types, their names in this release, and requests and replies in their terms.

No other file names a module of vLLM, so a release that moves something needs changes only here. Prompts are written by
the model's own template, which may be a text or code of its tokenizer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias

from mac_runner.backends.base import lookahead_for
from mac_runner.backends.chat_template import (
    CLOSED_THOUGHT,
    OPEN_THOUGHT,
    USER_PROBE,
    Conversation,
    Rendered,
    Renderer,
    Write,
    conversation_of,
    renderer_of,
    token_reply,
)
from mac_runner.backends.redaction import token_count
from mac_runner.backends.updates import policy_of
from mac_runner.backends.vllm.settings import VllmConfig
from mac_runner.errors import EngineCrashedError, RequestRefusedError, TransientBackendError, boundary
from mac_runner.types import EFFORT_KEYS, JsonValue, Prompt, Reply, Sampling, TokenTrace


class Tokenizer(Protocol):
    """The model's own tokenizer. That of an engine may be used on several threads."""

    def apply_chat_template(
        self, conversation: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str | list[int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...

    def decode(self, ids: list[int], /) -> str: ...


class ReasoningParser(Protocol):
    """How vLLM's engine finds the end of a thought, where the form of a constrained reply begins."""

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether no thought is open, so that the reply is held to its form from its first token."""


EngineConfig: TypeAlias = Any
"""vLLM's own configuration of an engine."""


class Engine(Protocol):
    """A running `AsyncLLMEngine`."""

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
    ) -> AsyncGenerator[Any, None]:
        """The outputs of one request; closing or cancelling it removes the request from the engine."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Empty the prefix cache. Running requests are computed again where that is asked for."""

    async def pause_generation(self, *, mode: str) -> None:
        """Take no step until it is resumed; `keep` leaves requests as they are."""

    async def resume_generation(self) -> None: ...

    async def collective_rpc(self, method: str, *, kwargs: Mapping[str, str]) -> object:
        """Call a method of each worker."""

    async def update_weight_version(self, new_version: str) -> None:
        """Say which version the weights have; replies carry it."""

    def get_tokenizer(self) -> Any: ...

    def shutdown(self) -> None:
        """End the engine's processes, first in good order and after seconds by force, which is not waited for."""


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
    """By tokens: the effective `max_num_seqs`, while their tokens fit. Else as many as fit at full length."""
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
    of_one: int | None = cache.kv_cache_size_tokens
    of_all: int = (cache.num_gpu_blocks or 0) * cache.block_size
    return of_all if of_one is None else of_one * int(engine.parallel_config.data_parallel_size)


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
        self._engine = import_module("vllm.engine.async_llm_engine")
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
        # These two are not part of its configuration.
        more = {name: settings[name] for name in ("disable_log_stats", "enable_log_requests") if name in settings}
        found: Engine = self._engine.AsyncLLMEngine.from_vllm_config(config, **more)
        return found

    def tokenizer(self, config: EngineConfig) -> Tokenizer:
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
        return self._inputs.tokens_input(prompt_token_ids=ids)

    def sampling_params(self, settings: Mapping[str, object], form: Mapping[str, JsonValue]) -> object:
        """vLLM's sampling parameters, with the `form` that the reply is held to."""
        outputs = self._sampling.StructuredOutputsParams(**form) if form else None
        kind = self._sampling.RequestOutputKind.FINAL_ONLY
        return self._sampling.SamplingParams(**settings, structured_outputs=outputs, output_kind=kind)


_PROBE: Final = conversation_of((USER_PROBE,))
_IN_CODE: Final = "in code"


def renderer_for(tokenizer: Tokenizer, settings: Mapping[str, JsonValue], *, section: tuple[str, ...]) -> Renderer:
    """The renderer of vLLM's model; an experiment's `settings` may bring the template that the model lacks.

    Raises ConfigError, for a key of the experiment's `section`, when the template cannot work.
    """
    key = (*section, "chat_template_kwargs" if settings else "model")
    write = _writer(tokenizer, settings) if _has_template(tokenizer, settings) else None
    return renderer_of(write, tokenizer.encode, key=key)


def is_free_to_think(prompt: Prompt, ids: list[int], parser: ReasoningParser | None) -> bool:
    """Whether the reply may continue a thought that the prompt, as `ids`, leaves open.

    It may when it is held to no form, or when the engine's `parser` finds that the form begins after the thought.
    """
    return not prompt.is_constrained or (parser is not None and not parser.is_reasoning_end(ids))


def tags_of(parser: ReasoningParser | None) -> tuple[str, str]:
    """What a model's thought begins and ends with: as its parser says, or the tags of most models."""
    start, end = getattr(parser, "reasoning_start_str", None), getattr(parser, "reasoning_end_str", None)
    return (start, end) if start and end else (OPEN_THOUGHT, CLOSED_THOUGHT)


def _has_template(tokenizer: Tokenizer, settings: Mapping[str, JsonValue]) -> bool:
    """Whether there is a template. One that is code has no text, so it is tried."""
    if getattr(tokenizer, "chat_template", _IN_CODE) is not None or "chat_template" in settings:
        return True
    try:
        with boundary(RequestRefusedError, "the chat template"):
            _written(tokenizer, _PROBE, {})
    except RequestRefusedError:
        return False
    return True


def _writer(tokenizer: Tokenizer, settings: Mapping[str, JsonValue]) -> Write:
    def by_text(conversation: Conversation) -> Rendered:
        text = _written(tokenizer, conversation, settings)
        return Rendered(text, tokenizer.encode(text, add_special_tokens=False))

    def by_tokens(conversation: Conversation) -> Rendered:
        ids = _tokenized(tokenizer, conversation, settings)
        return Rendered(tokenizer.decode(ids), ids)

    try:
        with boundary(RequestRefusedError, "the chat template"):
            # Mistral's tokenizers read the name of a special token in a text as plain letters.
            is_text_enough = by_text(_PROBE).ids == by_tokens(_PROBE).ids
    except RequestRefusedError:
        is_text_enough = True  # A broken template is reported when its shape is probed.
    return by_text if is_text_enough else by_tokens


def _written(tokenizer: Tokenizer, conversation: Conversation, settings: Mapping[str, JsonValue]) -> str:
    text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True, **settings)
    if not isinstance(text, str):
        raise TypeError(f"it writes a {type(text).__name__} instead of a text")
    return text


def _tokenized(tokenizer: Tokenizer, conversation: Conversation, settings: Mapping[str, JsonValue]) -> list[int]:
    ids = tokenizer.apply_chat_template(
        conversation, tokenize=True, return_dict=False, add_generation_prompt=True, **settings
    )
    if isinstance(ids, str):
        raise TypeError("it writes a text instead of tokens")
    return list(ids)


def sampling_settings(sampling: Sampling, *, defaults: Mapping[str, JsonValue], traces: bool) -> dict[str, object]:
    """The settings for vLLM's sampling parameters.

    `defaults` are the model's own, which `vllm serve` uses too, for settings that `sampling` leaves open.
    """
    given = {
        field: value for field, value in asdict(sampling).items() if value is not None and field not in EFFORT_KEYS
    }
    given["stop"] = list(sampling.stop)
    settings: dict[str, object] = {**defaults, **given}
    if traces:
        settings["logprobs"] = 0  # Of the drawn token alone.
    return settings


def reply_of(
    output: Any,
    rendered: Rendered,
    *,
    is_thinking: bool,
    traces: bool,
    tags: tuple[str, str] = (OPEN_THOUGHT, CLOSED_THOUGHT),
) -> Reply:
    """The reply, which continues a thought that the prompt opened if it `is_thinking`.

    `tags` are those of the model's thoughts.
    Raises TransientBackendError when the engine ended the request without finishing it, or its trace is not whole.
    """
    completion = output.outputs[0]
    ids = tuple(completion.token_ids)
    # vLLM may report the likelihood of other tokens than the drawn ones, too.
    pairs = zip(ids, completion.logprobs or (), strict=True) if traces else ()
    try:
        trace = TokenTrace(
            prompt_ids=tuple(rendered.ids),
            completion_ids=ids,
            logprobs=tuple(found[token].logprob for token, found in pairs),
        )
    except (ValueError, LookupError) as fault:
        raise TransientBackendError(
            f"vLLM's log-probabilities do not fit its tokens: {fault}", has_answered=True
        ) from fault
    text, (start, end) = completion.text, tags
    if tags != (OPEN_THOUGHT, CLOSED_THOUGHT) and (is_thinking or text.lstrip().startswith(start)):
        thought, closed, said = text.lstrip().removeprefix(start).partition(end)
        text = f"{'' if is_thinking else OPEN_THOUGHT}{thought}{CLOSED_THOUGHT if closed else ''}{said}"
    return token_reply(
        "vLLM",
        text,
        completion.finish_reason,
        trace=trace,
        cached=token_count(output.num_cached_tokens),
        is_thinking=is_thinking,
        traces=traces,
        # Releases before 0.32 report none.
        policy=policy_of([span.version for span in getattr(completion, "weight_versions", None) or ()]),
    )
