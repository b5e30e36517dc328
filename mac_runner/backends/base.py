"""The contract of an inference engine, and what one is built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from mac_runner.clock import Clock
from mac_runner.errors import ConfigError
from mac_runner.section import Section
from mac_runner.types import Reply, Request, Sampling

if TYPE_CHECKING:
    from mac_runner.config import AgentDefinition

_SLOTS_PER_LOOKAHEAD: Final = 8

S_co = TypeVar("S_co", bound=Section, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """What an engine cannot do."""

    settings: frozenset[str] = frozenset()
    """Fields of Sampling that it would ignore."""
    tokens: bool = False
    """Whether it does not report token ids and log-probabilities."""
    remedy: str = "leave it out"
    """What a user can do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendRequest(Generic[S_co]):
    """What a backend is built from."""

    name: str
    """The entry of `model_definitions`."""
    backend: str
    settings: S_co
    """The section of the backend."""
    record_tokens: bool
    """Whether replies are recorded token by token."""
    agents: Sequence[AgentDefinition]
    """All agents of the experiment."""
    policy_of: Callable[[str], Callable[[object, Random], str]]
    """Finds a scripted player by its name. Raises ConfigError where there is none."""
    clock: Clock
    say: Callable[[str], None]
    """Takes a line for the user."""
    can_pull: bool
    """Whether the engine may fetch a model that it does not have."""

    def refuse(self, unsupported: Unsupported) -> None:
        """Raise ConfigError for what is asked of the backend and would be ignored by it."""
        if self.record_tokens and unsupported.tokens:
            raise ConfigError(
                f"model_definitions.{self.name}.record_tokens: the backend {self.backend!r} does not report tokens; "
                f"{unsupported.remedy}",
                key=("model_definitions", self.name, "record_tokens"),
            )
        for index, agent in enumerate(self.agents):
            for setting in sorted(_used(agent) & unsupported.settings) if agent.model == self.name else ():
                raise ConfigError(
                    f"agent_definitions.{index}.{setting}: the backend {self.backend!r} of model {self.name!r} does "
                    f"not support it; {unsupported.remedy}",
                    key=("agent_definitions", index, setting),
                )

    @property
    def used_settings(self) -> frozenset[str]:
        """The fields of Sampling that agents of this model set."""
        return frozenset().union(*(_used(agent) for agent in self.agents if agent.model == self.name))


def _used(agent: AgentDefinition) -> frozenset[str]:
    return frozenset(field.name for field in fields(Sampling) if getattr(agent, field.name, None) not in (None, ()))


class Backend(Protocol):
    """One engine serving one entry of `model_definitions`.

    A backend answers or raises a BackendError; it never retries (the scheduler does), though a request that crossed the
    hanging up of a kept connection may go over another one. A setting it cannot honour is never dropped but refused:
    when the backend is built, or at `start` if only the engine can tell. `generate` may be cancelled at any await.
    """

    @property
    def capacity(self) -> int:
        """How many requests the engine serves at once; known after `start`."""
        ...

    @property
    def token_budget(self) -> int | None:
        """How many tokens of all requests at once the engine's KV cache holds, to admit by; None: by capacity alone."""
        ...

    @property
    def lookahead(self) -> int:
        """How many requests more the engine is handed than it serves at once; known after `start`.

        They wait inside, so that a request which ends is followed by the next one without a round trip to us.
        """
        ...

    async def start(self) -> None:
        """Make the engine ready to generate. Raises ConfigError or EngineDeadError."""
        ...

    async def generate(self, request: Request) -> Reply:
        """One reply. Raises TransientBackendError, RequestRefusedError or EngineDeadError.

        A prompt that does not fit the model's context is answered with FinishReason.OVERFLOW and no text: what to
        leave out is for the environment to say. A reply whose reasoning was cut off keeps its open `<think>`.

        ConnectionError and TimeoutError may be raised as they are and count as TransientBackendError; any other
        error of plain Python counts as EngineDeadError and ends the run.
        """
        ...

    async def close(self) -> None:
        """Release everything; safe to call twice and after a failed start."""
        ...


def lookahead_for(requests: int) -> int:
    """The `lookahead` of an engine that serves so many requests at once and makes further ones wait.

    It is enough for those that end in one step, unless all are of one length.
    """
    return -(-requests // _SLOTS_PER_LOOKAHEAD)
