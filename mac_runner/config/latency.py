"""How long a reply takes by the latency model: one formula, and the two places of a file that set its numbers.

    latency_ms = prefill_ms + ceil(tokens / quantum) * kernel_ms + tool_ms for each tool request

`game.latency` runs the clock of a conversation and so decides what players see: it is identity. The latency of a model
only makes its engine answer later: it is runtime. All numbers are whole milliseconds, so that two turns that end at
the same moment do so on every machine.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from mac_runner.config.section import IDENTITY, RUNTIME, Section
from mac_runner.types import Reply

CHARS_PER_TOKEN: Final = 4
"""The estimate for an engine that does not count its tokens."""

_MS_MAX: Final = 600_000


class GameLatency(Section):
    """How long a turn takes on the clock of a discussion held under information lag."""

    prefill_ms: Annotated[int, IDENTITY, Field(ge=0, le=_MS_MAX)] = 200
    """For reading a prompt, once for each request of the turn."""
    kernel_ms: Annotated[int, IDENTITY, Field(ge=0, le=_MS_MAX)] = 400
    """For each quantum of tokens, the last one whole."""
    quantum: Annotated[int, IDENTITY, Field(ge=1, le=100_000)] = 16
    """How many tokens are decoded at a stretch."""
    tool_ms: Annotated[int, IDENTITY, Field(ge=0, le=_MS_MAX)] = 100
    """For each tool request of the turn."""

    def generation_ms(self, reply: Reply) -> int:
        """How long the engine takes for `reply`; tools come on top."""
        return _generation_ms(reply, self.prefill_ms, self.kernel_ms, self.quantum)


class EngineLatency(Section):
    """How long a model's replies are made to take, in real time, where the engine itself is faster."""

    prefill_ms: Annotated[int, RUNTIME, Field(ge=0, le=_MS_MAX)] = 200
    """For reading a prompt."""
    kernel_ms: Annotated[int, RUNTIME, Field(ge=0, le=_MS_MAX)] = 400
    """For each quantum of tokens, the last one whole."""
    quantum: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 16
    """How many tokens are decoded at a stretch."""

    def generation_ms(self, reply: Reply) -> int:
        """How long `reply` takes from the sending of its request."""
        return _generation_ms(reply, self.prefill_ms, self.kernel_ms, self.quantum)


def _generation_ms(reply: Reply, prefill_ms: int, kernel_ms: int, quantum: int) -> int:
    tokens = reply.tokens.completion or -(-len(reply.text) // CHARS_PER_TOKEN)
    return prefill_ms + -(-tokens // quantum) * kernel_ms
