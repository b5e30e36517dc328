"""`ollama_config`: the settings of the backend `ollama`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mac_runner.section import IDENTITY, RUNTIME, Section, Text, Url


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
