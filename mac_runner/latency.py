"""The latency model: how long a reply takes.

    latency_ms = prefill_ms + ceil(tokens / quantum) * kernel_ms + tool_ms for each tool request

As the clock of an environment it decides what agents see, so it is identity. As the latency of a model it only delays
replies, so it is runtime. All numbers are whole milliseconds, so that two turns that
end at the same moment do so on every machine.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from mac_runner.section import RUNTIME, Section
from mac_runner.types import Reply

CHARS_PER_TOKEN: Final = 4
"""The estimate for an engine that does not count its tokens."""

LATENCY_MS_MAX: Final = 600_000
"""The longest time that a setting may name."""


class EngineLatency(Section):
    """How long a model's replies are made to take, in real time, where the engine itself is faster."""

    prefill_ms: Annotated[int, RUNTIME, Field(ge=0, le=LATENCY_MS_MAX)] = 200
    """For reading a prompt."""
    kernel_ms: Annotated[int, RUNTIME, Field(ge=0, le=LATENCY_MS_MAX)] = 400
    """For each quantum of tokens, the last one whole."""
    quantum: Annotated[int, RUNTIME, Field(ge=1, le=100_000)] = 16
    """How many tokens are decoded at a stretch."""

    def generation_ms(self, reply: Reply) -> int:
        """How long `reply` takes from the sending of its request."""
        return generation_ms_of(reply, self.prefill_ms, self.kernel_ms, self.quantum)


def generation_ms_of(reply: Reply, prefill_ms: int, kernel_ms: int, quantum: int) -> int:
    """How long an engine takes for `reply`, in milliseconds."""
    tokens = reply.tokens.completion or -(-len(reply.text) // CHARS_PER_TOKEN)
    return prefill_ms + -(-tokens // quantum) * kernel_ms
