"""From an entry of `model_definitions` to the backend that serves it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mac_runner.backends.base import Backend
from mac_runner.backends.delayed import DelayedBackend
from mac_runner.backends.scripted import ScriptedBackend
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition
from mac_runner.errors import ConfigError


def build_backend(
    name: str,
    definition: ModelDefinition,
    policy_of: Callable[[str], Callable[[object, Random], str]],
    clock: Clock,
) -> Backend:
    """The backend of model `name`; `policy_of` finds a scripted player by its name and raises ConfigError for none."""
    config = definition.scripted_config
    if definition.backend != "scripted" or config is None:
        raise ConfigError(
            f"model_definitions.{name}.backend: found {definition.backend!r}; this version runs 'scripted' only; "
            "choose a profile whose models are scripted (`--profile embedded` is the default one)",
            key=("model_definitions", name, "backend"),
        )
    backend = ScriptedBackend(
        policy=policy_of(config.policy),
        capacity=config.capacity,
        latency_ms=config.latency_ms,
        clock=clock,
    )
    return backend if definition.latency is None else DelayedBackend(backend, definition.latency, clock)
