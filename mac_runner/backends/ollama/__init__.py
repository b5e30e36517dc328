"""The backend `ollama`: models served by Ollama."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import Field

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.clock import Clock
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.section import IDENTITY, RUNTIME, Section, Text, Urls

if TYPE_CHECKING:
    from mac_runner.config import AgentDefinition


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


_VERSION: Final = re.compile(r"(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)
WHOLE_PROMPTS_SINCE: Final = (0, 12, 6)
"""An older server shortens a prompt that does not fit the context, whatever the request says."""
PENALTIES_SINCE: Final = (0, 30, 0)
"""In an older server the engine for newer models ignores penalties."""
PENALTIES: Final = frozenset({"presence_penalty", "frequency_penalty", "repetition_penalty"})


def missing_in(version: str, *, settings: Collection[str]) -> str | None:
    """What a server of `version` lacks for a run that sets `settings`; None when it lacks nothing.

    A version without a number counts as the newest, and so does 0.0.0, that of a server built from its sources.
    """
    match = _VERSION.match(version)
    found = tuple(map(int, match.groups())) if match else ()
    if not any(found):
        return None
    if found < WHOLE_PROMPTS_SINCE:
        return f"it silently shortens prompts that do not fit; update it to {_dotted(WHOLE_PROMPTS_SINCE)} or later"
    penalties = ", ".join(sorted(PENALTIES & set(settings)))
    if penalties and found < PENALTIES_SINCE:
        since = _dotted(PENALTIES_SINCE)
        return f"it ignores {penalties} with some models; leave that out, or update it to {since} or later"
    return None


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


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
