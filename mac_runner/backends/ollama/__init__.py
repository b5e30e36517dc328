"""The backend `ollama`: models served by Ollama."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from mac_runner.backends.base import Backend, BackendRequest, Unsupported
from mac_runner.backends.http.settings import OllamaConfig
from mac_runner.clock import Clock
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec
from mac_runner.spec import serving_at

if TYPE_CHECKING:
    from mac_runner.spec import AgentDefinition

__all__ = ["SPEC", "OllamaConfig"]


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
    serving=partial(serving_at, "host"),
    servers_key="host",
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("aiohttp", "ollama", "httpx"),
    holds_memory=True,
    can_pull=True,
    connections=lambda settings: settings.max_in_flight,
    local=_local,
)
