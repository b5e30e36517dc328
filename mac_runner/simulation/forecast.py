"""What a run is expected to take: the figures of a simulated run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from mac_runner.types import TokenCount

Limit: TypeAlias = Literal["client", "kv", "engine", "gating"]
"""What holds a run back first: the runner's own CPU, the KV cache of an engine, the speed of an engine, or turns that
wait for other turns of their conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUse:
    """What one engine does in the run."""

    lanes: int
    slots: int
    """How many requests all lanes serve at once."""
    requests: int
    tokens: TokenCount
    slot_share: float
    """The part of the slots that is in use, over the time of the run."""
    step_share: float
    """The part of the time in which a lane is in a step, on average over the lanes."""
    kv_wait_share: float
    """The part of the time in which a lane has a free slot and a request that waits for KV cache."""
    waiting: float
    """How many turns wait for a slot, on average."""
    preemptions: int
    """How often a request lost its place in the KV cache and was read again."""

    @property
    def hit_share(self) -> float:
        """The part of the prompts' tokens that is served from the prefix cache."""
        return self.tokens.cached / self.tokens.prompt if self.tokens.prompt else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the whole study is expected to take, from a simulation of it or of a part of it."""

    seconds: float
    """From the first request to the last reply, with all engines up."""
    conversations: int
    turns: int
    failed: int
    """Conversations that fail."""
    engines: Mapping[str, EngineUse]
    critical_path_s: float
    """How long the longest conversation takes on engines that serve nothing else: no number of lanes makes the run
    shorter."""
    client_share: float
    """The part of the time in which the runner's process computes."""
    limit: Limit
    limiting_engine: str | None
    """The engine that `limit` speaks of."""
    played: int
    """How many conversations were simulated."""
    played_share: float
    """The part of the lanes that was simulated, with their share of the conversations and of the runner's CPU."""

    @property
    def hours(self) -> float:
        """The same in hours."""
        return self.seconds / 3600

    @property
    def tokens(self) -> TokenCount:
        """The tokens of all engines."""
        return sum((engine.tokens for engine in self.engines.values()), TokenCount())

    @property
    def slot_share(self) -> float:
        """The part of all slots that is in use."""
        slots = sum(engine.slots for engine in self.engines.values())
        return sum(engine.slots * engine.slot_share for engine in self.engines.values()) / slots

    @property
    def hit_share(self) -> float:
        """The part of the prompts' tokens that is served from the prefix cache."""
        tokens = self.tokens
        return tokens.cached / tokens.prompt if tokens.prompt else 0.0
