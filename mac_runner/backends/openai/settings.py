"""`openai_config`: the settings of the backend `openai`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from mac_runner.section import IDENTITY, RUNTIME, Listed, Section, Text, Url, VariableName


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
