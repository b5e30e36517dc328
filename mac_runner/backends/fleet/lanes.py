"""What the backend `fleet` asks of a fleet. The room `fleet` has one; a test may have another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneAddress:
    """One engine of a model as requests see it."""

    name: str
    """Such as `townsfolk@0`: unique in the fleet, and the same after a restart."""
    url: str
    """Its base URL, which ends in `/v1`."""
    gpus: tuple[str, ...]
    """The indices of its GPUs, or the UUID of its slice; empty on a machine without GPUs."""
    slots: int
    """How many requests it serves at once."""
    admin_key: str | None = field(default=None, repr=False)
    """The key of its `/admin` paths, where the fleet of this run has started it."""

    @property
    def gpu(self) -> str | None:
        """Its GPUs as events name them; None on a machine without GPUs."""
        return ",".join(self.gpus) or None


class ModelLanes(Protocol):
    """The engines of one entry of `model_definitions`. All calls are made in the loop of the fleet."""

    @property
    def up(self) -> tuple[LaneAddress, ...]:
        """The engines that take requests now, in an order that stays."""

    @property
    def all(self) -> tuple[LaneAddress, ...]:
        """All engines that are not retired, whatever their state."""

    @property
    def lost(self) -> str | None:
        """Why no engine of this model will serve again; None while one may."""

    @property
    def is_swapped(self) -> bool:
        """Whether this model shares its places with others, so that requests wait for their turn."""

    @property
    def stall_s(self) -> float:
        """How long an engine with requests in flight may give no answer before it is looked at."""

    def on_change(self, tell: Callable[[], None]) -> None:
        """Call `tell` whenever `up` or `lost` changes."""

    async def start(self) -> None:
        """Start the engines, if that has not begun; returns when one is up. Raises EngineDeadError or ConfigError."""

    def turn(self, agent: str) -> AbstractAsyncContextManager[str | None]:
        """A place for one request where models are swapped: entered when the model is resident, left after the reply.

        `agent` names who asks. The request must go to the lane that is named. Where nothing is swapped it is entered at
        once, without a lane: the request may go to any that is up.
        """

    def see(self, system: str) -> None:
        """Take the system message of a prompt: what the first ones have in common warms up engines that start.

        Cheap; it may be called for each request.
        """

    def report_stuck(self, lane: str, why: str) -> None:
        """Say that an engine gives no reply, not even to a canary: the fleet ends it and starts it again."""

    def report_broken(self, lane: str, why: str) -> None:
        """Say that a connection to an engine broke. The fleet looks whether its process has ended."""


class Fleet(Protocol):
    """The engines of this machine."""

    def model(self, name: str) -> ModelLanes:
        """Those of one entry of `model_definitions`."""
