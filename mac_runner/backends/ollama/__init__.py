"""The backend `ollama`: models served by Ollama."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.clock import Clock
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.section import IDENTITY, RUNTIME, Section, Text, Urls

if TYPE_CHECKING:
    from mac_runner.config import AgentDefinition

__all__ = ["SPEC", "OllamaConfig"]


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


EFFORTS: Final = ("low", "medium", "high")
"""What Ollama's `think` may be besides true and false."""


def _objections(agent: AgentDefinition) -> Iterator[tuple[str, str]]:
    """A `reasoning_effort` that Ollama would refuse or ignore, with the reason."""
    effort = agent.reasoning_effort
    if effort is not None and effort not in EFFORTS:
        yield "reasoning_effort", f"found {effort!r}; Ollama takes {', '.join(EFFORTS)}"
    elif effort is not None and agent.thinking is False:
        yield "reasoning_effort", "`thinking: false` leaves no effort; leave out one of them"


def _build(request: BackendRequest[OllamaConfig]) -> Backend:
    from mac_runner.backends.ollama.backend import OllamaBackend

    request.refuse(Unsupported(tokens=True))
    request.check_agents(_objections)
    return OllamaBackend(request)


async def _local(clock: Clock) -> str:
    from mac_runner.backends.ollama.backend import described

    return await described(OllamaConfig.model_fields["host"].default[0], clock)


SPEC = BackendSpec(
    settings=OllamaConfig,
    build=_build,
    describe=lambda settings: f"ollama, {settings.model}",
    servers_key="host",
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("aiohttp", "ollama", "httpx"),
    holds_memory=True,
    can_pull=True,
    connections=lambda settings: settings.max_in_flight,
    local=_local,
)
