"""The settings of the models behind servers: what an experiment says of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from mac_runner.section import IDENTITY, RUNTIME, Section, Text, Urls, VariableName

THINKING_TOKENS_MIN: Final = 1024
"""The smallest budget for a thought that Anthropic's API takes."""


class OpenaiConfig(Section):
    """A model behind any server that speaks the OpenAI protocol."""

    model: Annotated[Text, IDENTITY]
    """The model's name at the server."""
    base_urls: Annotated[Urls, RUNTIME]
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
    admin_key_env: Annotated[VariableName | None, RUNTIME] = None
    """The environment variable that holds the key of `mac-serve` for its `/admin` paths; updates of weights need it."""
    weights_dir: Annotated[Text | None, RUNTIME] = None
    """Where tensors for an update of weights are written: a directory that all servers read, too; null: that of this
    machine's temporary files."""
    max_in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 64
    """How many requests are sent at once, all servers together; each of them gets one at least."""
    timeout_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 300.0
    """How long one sending of a request may take; `retry_config.request_deadline_s` bounds all of them together."""
    stall_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 30.0
    """A server with requests in flight that gives no answer for so long is sent a canary; one that hangs is set
    aside, and its requests are sent elsewhere."""


class AnthropicConfig(Section):
    """A Claude model behind Anthropic's Messages API."""

    model: Annotated[Text, IDENTITY]
    """The model's name at the API; a name with a date stays the same model."""
    base_url: Annotated[Urls, RUNTIME] = ("https://api.anthropic.com",)
    """Where the API is, without `/v1`; a list for several gateways to it, all alike."""
    api_key_env: Annotated[VariableName, RUNTIME] = "ANTHROPIC_API_KEY"
    """The environment variable that holds the key; the key itself never stands in a file."""
    api_version: Annotated[Literal["2026-10-21", "2023-06-01"], IDENTITY] = "2026-10-21"
    """The version of the API; only the older one takes `temperature`, `top_p` and `top_k`, for models that do."""
    thinking_budget_tokens: Annotated[int | None, IDENTITY, Field(ge=THINKING_TOKENS_MIN)] = None
    """The tokens of a thought of agents with `thinking: true`; null lets the model decide, which older ones cannot."""
    prompt_caching: Annotated[bool, RUNTIME] = True
    """Whether the API keeps the system message, which is cheaper when it comes again within five minutes."""
    max_in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 16
    """How many requests are sent at once, all servers together; each of them gets one at least."""
    timeout_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 600.0
    """How long one sending of a request may take; `retry_config.request_deadline_s` bounds all of them together."""
    stall_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 120.0
    """A server with requests in flight that gives no answer for so long is sent a canary; one that hangs is set
    aside, and its requests are sent elsewhere."""


class OllamaConfig(Section):
    """A model served by Ollama."""

    model: Annotated[Text, IDENTITY]
    """The model's tag, as `ollama list` shows it."""
    host: Annotated[Urls, RUNTIME] = ("http://127.0.0.1:11434",)
    """Where Ollama listens; a list for several servers that all have the model."""
    num_ctx: Annotated[int | None, IDENTITY, Field(ge=1)] = None
    """The context length in tokens; null leaves it to Ollama."""
    think: Annotated[bool | None, IDENTITY] = None
    """Whether a model that can think before it replies does; null leaves it to Ollama, where it does."""
    keep_alive: Annotated[Text, RUNTIME] = "5m"
    """How long Ollama keeps the model loaded after the last request; a negative time such as -1m for ever."""
    max_in_flight: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 4
    """How many requests are sent at once, all servers together; each of them gets one at least. Best is the sum of all
    OLLAMA_NUM_PARALLEL, or a little more."""
    timeout_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 86_400.0
    """How long one sending of a request may take; `retry_config.request_deadline_s` bounds all of them together."""
    stall_s: Annotated[float, RUNTIME, Field(gt=0, le=86_400)] = 30.0
    """A server with requests in flight that gives no answer for so long is looked at; one that answers nothing else
    either is set aside, and its requests are sent elsewhere."""
