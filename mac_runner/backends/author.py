"""The base class of a backend that a user writes: `generate` is its own, everything else has a default."""

from __future__ import annotations

from collections.abc import Awaitable, Collection
from typing import Any, ClassVar

from pydantic import BaseModel

from mac_runner.types import Decoding, Reply, Request
from mac_runner.weights import WeightUpdate


class OwnBackend:
    """One engine, for one entry of `model_definitions`.

    An experiment names the class: `backend: ./parrot.py:Parrot`. The class need not inherit from this one; what it
    lacks is taken from here. `__init__` runs whenever an experiment is checked, so it only keeps its settings; a model
    is loaded in `start`.
    """

    Settings: ClassVar[type[BaseModel] | None] = None
    """The section `settings` of the model definition; without a model, a definition may have no settings."""
    honours: ClassVar[Collection[str]] = ()
    """The fields of `Sampling` that `generate` obeys. An agent that sets another one is refused."""
    constrains: ClassVar[Collection[Decoding]] = ()
    """What it can hold replies to, of `schema` and `json_object`: prompts then come with `schema` or `choices`."""
    records_tokens: ClassVar[bool] = False
    """Whether replies have a `trace`, which `record_tokens: true` asks for."""
    holds_memory: ClassVar[bool] = False
    """Whether its models take this machine's memory; a grid then runs such engines one after the other."""
    packages: ClassVar[Collection[str]] = ()
    """Distributions that it needs. Where one is not installed, an experiment is refused before it starts."""
    capacity: int | None = None
    """How many requests it serves at once; None: 8, or 1 where `generate` is a plain function. Known after `start`."""
    token_budget: int | None = None
    """How many tokens its KV cache holds, to admit requests by; None: admit by `capacity` alone."""
    lookahead: int = 0
    """How many requests beyond `capacity` may wait inside it."""

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings

    def start(self) -> Awaitable[None] | None:
        """Make the engine ready. Raises ConfigError for a wrong setting, EngineDeadError when it is not there."""
        return None

    def generate(self, request: Request) -> Reply | str | Awaitable[Reply | str]:
        """One reply: `async def`, or a plain function, which runs in a thread.

        Raises TransientBackendError for what is worth another try, RequestRefusedError for a request that will never be
        answered, EngineDeadError when no request will be.
        """
        raise NotImplementedError

    def update_weights(self, update: WeightUpdate) -> Awaitable[None] | None:
        """Install the weights of a trainer, where the class has this; its replies then have a `policy`.

        Once it returns, every later reply is of `update.version`. Raises WeightUpdateError, or one of its kinds, and
        then goes on with the weights it had. What else it raises counts as WeightUpdateError.
        """
        raise NotImplementedError

    def close(self) -> Awaitable[None] | None:
        """Release everything; safe to call twice and after a failed start."""
        return None
