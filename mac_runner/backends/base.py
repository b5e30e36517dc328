"""The contract of an inference engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from mac_runner.types import Reply, Request

_SLOTS_PER_LOOKAHEAD: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lacks:
    """What an engine cannot do: settings of Sampling that it would drop, and whether it keeps its `tokens` to itself.

    `remedy` tells who asked for it what to do.
    """

    settings: frozenset[str] = frozenset()
    tokens: bool = False
    remedy: str = "leave it out"


class Backend(Protocol):
    """One engine serving one entry of `model_definitions`.

    A backend answers or raises a BackendError; it never retries (the scheduler does), though a request that crossed the
    hanging up of a kept connection may go over another one. A setting it cannot honour is
    never dropped but refused: when the backend is built, or at `start` if only the engine can tell. `generate` may be
    cancelled at any await.
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
