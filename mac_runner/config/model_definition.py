"""`model_definitions`: the engines of an experiment, each under the name its agents call it by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import ConfigDict, Field, JsonValue

from mac_runner.config.latency import EngineLatency
from mac_runner.config.section import IDENTITY, RUNTIME, Listed, Section, Text, Url, VariableName

Backend: TypeAlias = Literal["scripted", "vllm", "ollama", "openai", "nano"]
BACKENDS: Final[tuple[Backend, ...]] = get_args(Backend)


class ScriptedConfig(Section):
    """Players that are programs: the environment supplies them, nothing else is needed."""

    policy: Annotated[Text, IDENTITY]
    """Which scripted player of the environment answers."""
    capacity: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """How many requests are answered at once."""
    latency_ms: Annotated[float, RUNTIME, Field(ge=0, le=600_000)] = 0.0
    """How long each answer is made to take."""


class VllmConfig(Section):
    """A vLLM engine on this machine's GPUs. Any other engine argument may stand here under the name vLLM gives it."""

    # Which names there are is for the installed release to say; the backend checks them before a run begins.
    model_config = ConfigDict(extra="allow")

    model: Annotated[Text, IDENTITY]
    """The model's name or path, as vLLM takes it."""
    max_num_seqs_upper_bound: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 256
    """No more requests at once than this, however many the engine's KV cache would hold."""
    tensor_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=1024)] = 1
    """Over how many GPUs each copy of the model is split."""
    data_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=1024)] = 1
    """How many copies of the model serve side by side."""
    gpu_memory_utilization: Annotated[float, RUNTIME, Field(gt=0, le=1)] = 0.9
    """The share of each GPU's memory the engine may take."""
    max_model_len: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The longest context in tokens; null leaves it to the model."""
    dtype: Annotated[Text, IDENTITY] = "auto"
    """The number format of the weights."""
    enable_prefix_caching: Annotated[bool, IDENTITY] = True
    """Whether prompts that begin alike share their KV cache."""
    attention_backend: Annotated[Text | None, IDENTITY] = None
    """Which attention kernels to use; null leaves it to vLLM."""
    chat_template_kwargs: Annotated[Mapping[str, JsonValue], IDENTITY] = {}
    """What the model's chat template is given besides the messages, such as enable_thinking."""
    admission: Annotated[Literal["token_budget", "full_context"], RUNTIME] = "token_budget"
    """Admit requests while the tokens they need fit the KV cache, or as many as fit at full context length."""


class OllamaConfig(Section):
    """A model served by Ollama."""

    model: Annotated[Text, IDENTITY]
    """The model's tag, as `ollama list` shows it."""
    host: Annotated[Url, RUNTIME] = "http://127.0.0.1:11434"
    """Where Ollama listens."""
    num_ctx: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The context length in tokens; null leaves it to Ollama."""
    think: Annotated[bool | None, IDENTITY] = None
    """Whether a model that can think before it replies does; null leaves it to Ollama, where it does."""
    keep_alive: Annotated[Text, RUNTIME] = "5m"
    """How long Ollama keeps the model loaded after the last request; a negative time such as -1m for ever."""
    max_in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 4
    """How many requests are sent at once; best the server's OLLAMA_NUM_PARALLEL or a little more."""


class OpenaiConfig(Section):
    """A model behind any server that speaks the OpenAI protocol."""

    model: Annotated[Text, IDENTITY]
    """The model's name at the server."""
    base_urls: Annotated[Listed[Url], RUNTIME, Field(min_length=1, max_length=1000)]
    """The servers that serve it, all alike; a URL usually ends in `/v1`."""
    server: Annotated[Literal["openai", "vllm"], IDENTITY] = "openai"
    """What the servers understand: the protocol as OpenAI has it, or with vLLM's additions."""
    endpoint: Annotated[Literal["chat", "completions"], IDENTITY] = "chat"
    """Where requests go; `completions` sends the prompt as plain text, for base models without a chat template."""
    chat_template_kwargs: Annotated[Mapping[str, bool | int | float | str | None], IDENTITY] = {}
    """Switches of the model's chat template, such as `enable_thinking: false`; needs `server: vllm`."""
    reply_limit_parameter: Annotated[Literal["max_tokens", "max_completion_tokens"], RUNTIME] = "max_tokens"
    """What the servers call the limit on a reply; OpenAI's reasoning models want `max_completion_tokens`."""
    api_key_env: Annotated[VariableName | None, RUNTIME] = None
    """The environment variable that holds the key; the key itself never stands in a file."""
    max_in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """How many requests are sent at once, all servers together."""
    timeout_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 300.0
    """How long one sending of a request may take; `retry_config.request_deadline_s` bounds all of them together."""


class NanoConfig(Section):
    """The engine of mac_runner itself, in this process and beside it, on a CPU or on GPUs."""

    model: Annotated[Text, IDENTITY]
    """A directory of the Hugging Face kind, or a name on the hub, which is downloaded."""
    max_num_seqs_upper_bound: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """No more requests at once than this, however many the KV cache would hold."""
    max_model_len: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The longest context in tokens; null leaves it to the model."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], IDENTITY] = "auto"
    """The number format of the weights."""
    device: Annotated[Literal["auto", "cpu", "cuda"], IDENTITY] = "auto"
    """What computes; auto takes a GPU where there is one."""
    num_threads: Annotated[int | None, IDENTITY, Field(ge=1, le=64)] = None
    """Threads of each process on a CPU, whose number decides the last bits of a result; null shares out all cores."""
    tensor_parallel_size: Annotated[int, RUNTIME, Field(ge=1, le=64)] = 1
    """How many processes share each step's work, on GPUs one of its own for each. It must divide the model's heads."""
    kv_cache_gib: Annotated[float, RUNTIME, Field(gt=0, le=4096)] = 1.0
    """The memory for the KV cache on a CPU."""
    gpu_memory_utilization: Annotated[float, RUNTIME, Field(gt=0, le=1)] = 0.9
    """The share of the GPU's memory the engine may take."""
    max_num_batched_tokens: Annotated[int, RUNTIME, Field(ge=16, le=1_000_000)] = 512
    """How many tokens one step computes at most; raised to what the requests at once need."""
    chat_template_kwargs: Annotated[Mapping[str, JsonValue], IDENTITY] = {}
    """What the model's chat template is given besides the messages, such as enable_thinking."""


class ModelDefinition(Section):
    """One engine: which backend, and the section of that backend (and of no other)."""

    backend: Annotated[Backend, IDENTITY]
    """What serves the model; the section `<backend>_config` sets it up."""
    scripted_config: ScriptedConfig | None = None
    """Settings of the backend `scripted`."""
    vllm_config: VllmConfig | None = None
    """Settings of the backend `vllm`."""
    ollama_config: OllamaConfig | None = None
    """Settings of the backend `ollama`."""
    openai_config: OpenaiConfig | None = None
    """Settings of the backend `openai`."""
    nano_config: NanoConfig | None = None
    """Settings of the backend `nano`."""
    record_tokens: Annotated[bool, IDENTITY] = False
    """Whether each reply is recorded with its token ids and log-probabilities, for training on it later."""
    latency: EngineLatency | None = None
    """Makes replies take as long as the latency model says, where the engine is faster; null leaves it alone."""
