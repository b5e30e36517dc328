"""From an entry of `model_definitions` to the backend that serves it.

A backend's module is imported when an experiment names it, so that nothing heavy is loaded for the others. What an
experiment asks of a backend is checked here, before a run directory is touched: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from random import Random

from mac_runner.backends import scripted
from mac_runner.backends.base import Backend
from mac_runner.backends.delayed import DelayedBackend
from mac_runner.clock import Clock
from mac_runner.config import AgentDefinition, ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.types import Sampling


def build_backend(
    name: str,
    definition: ModelDefinition,
    *,
    agents: Sequence[AgentDefinition],
    policy_of: Callable[[str], Callable[[object, Random], str]],
    clock: Clock,
    say: Callable[[str], None],
) -> Backend:
    """The backend of model `name`, not started. Raises ConfigError for a setting that the backend cannot honour.

    `agents` are all of the experiment's; `policy_of` finds a scripted player by its name and raises ConfigError for
    none; `say` is told what takes long, a line at a time.
    """
    backend = _build(name, definition, agents, policy_of, clock)
    return backend if definition.latency is None else DelayedBackend(backend, definition.latency, clock)


def _build(
    name: str,
    definition: ModelDefinition,
    agents: Sequence[AgentDefinition],
    policy_of: Callable[[str], Callable[[object, Random], str]],
    clock: Clock,
) -> Backend:
    if definition.scripted_config is not None:
        config = definition.scripted_config
        _check(name, definition, agents, settings=scripted.SETTINGS, traces=False)
        return scripted.ScriptedBackend(
            policy=policy_of(config.policy), capacity=config.capacity, latency_ms=config.latency_ms, clock=clock
        )
    if definition.vllm_config is not None:
        from mac_runner.backends import vllm

        _check(name, definition, agents, settings=vllm.SETTINGS, traces=True)
        return vllm.VllmBackend(name=name, config=definition.vllm_config, traces=definition.record_tokens, clock=clock)
    raise ConfigError(
        f"model_definitions.{name}.backend: found {definition.backend!r}; this version runs 'scripted' and 'vllm'; "
        "choose a profile whose models are scripted (`--profile embedded` is the default one)",
        key=("model_definitions", name, "backend"),
    )


def _check(
    name: str,
    definition: ModelDefinition,
    agents: Sequence[AgentDefinition],
    *,
    settings: frozenset[str],
    traces: bool,
) -> None:
    """Refuse what the backend would have to drop: `settings` are those of Sampling that it honours."""
    if definition.record_tokens and not traces:
        raise ConfigError(
            f"model_definitions.{name}.record_tokens: the backend {definition.backend!r} does not tell tokens; "
            "leave it out",
            key=("model_definitions", name, "record_tokens"),
        )
    for index, agent in enumerate(agents):
        for field in fields(Sampling):
            if agent.model == name and field.name not in settings and getattr(agent, field.name, None):
                raise ConfigError(
                    f"agent_definitions.{index}.{field.name}: the backend {definition.backend!r} of model {name!r} "
                    "does not support it; leave it out",
                    key=("agent_definitions", index, field.name),
                )
