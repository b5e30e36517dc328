"""From an entry of `model_definitions` to the backend that serves it.

A backend's module is imported when an experiment names it, so that nothing heavy is loaded for the others. What an
experiment asks of a backend is checked here, before a run directory is touched: nothing is dropped silently.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from random import Random
from typing import Final

from mac_runner.backends import scripted
from mac_runner.backends.base import Backend, Lacks
from mac_runner.backends.delayed import DelayedBackend
from mac_runner.clock import Clock
from mac_runner.config import AgentDefinition, ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.types import Sampling

PULLING: Final = frozenset({"ollama"})
"""The backends that can fetch a model they do not have."""


def build_backend(
    name: str,
    definition: ModelDefinition,
    *,
    agents: Sequence[AgentDefinition],
    policy_of: Callable[[str], Callable[[object, Random], str]],
    clock: Clock,
    say: Callable[[str], None],
    is_pulling: bool = False,
) -> Backend:
    """The backend of model `name`, not started. Raises ConfigError for a setting that the backend cannot honour.

    `agents` are all of the experiment's; `policy_of` finds a scripted player by its name and raises ConfigError for
    none; `say` is told what takes long, a line at a time; `is_pulling` lets an engine fetch a model it does not have.
    """
    order = _Order(
        name=name,
        definition=definition,
        agents=agents,
        policy_of=policy_of,
        clock=clock,
        say=say,
        is_pulling=is_pulling,
    )
    backend = _BUILDERS[definition.backend](order)
    return backend if definition.latency is None else DelayedBackend(backend, definition.latency, clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """What a backend is built from; see `build_backend`."""

    name: str
    definition: ModelDefinition
    agents: Sequence[AgentDefinition]
    policy_of: Callable[[str], Callable[[object, Random], str]]
    clock: Clock
    say: Callable[[str], None]
    is_pulling: bool

    def refuse(self, lacks: Lacks) -> None:
        """Raises ConfigError for what is asked of the backend and would be dropped by it."""
        if self.definition.record_tokens and lacks.tokens:
            raise ConfigError(
                f"model_definitions.{self.name}.record_tokens: the backend {self.definition.backend!r} does not tell "
                f"tokens; {lacks.remedy}",
                key=("model_definitions", self.name, "record_tokens"),
            )
        for index, agent in enumerate(self.agents):
            for setting in sorted(_used(agent) & lacks.settings) if agent.model == self.name else ():
                raise ConfigError(
                    f"agent_definitions.{index}.{setting}: the backend {self.definition.backend!r} of model "
                    f"{self.name!r} does not support it; {lacks.remedy}",
                    key=("agent_definitions", index, setting),
                )

    @property
    def used_settings(self) -> frozenset[str]:
        """The settings of Sampling that agents of this model use."""
        return frozenset().union(*(_used(agent) for agent in self.agents if agent.model == self.name))


def _used(agent: AgentDefinition) -> frozenset[str]:
    return frozenset(field.name for field in fields(Sampling) if getattr(agent, field.name, None) not in (None, ()))


def _scripted(order: _Order) -> Backend:
    config = order.definition.scripted_config
    assert config is not None
    order.refuse(Lacks(tokens=True))
    return scripted.ScriptedBackend(
        policy=order.policy_of(config.policy),
        capacity=config.capacity,
        latency_ms=config.latency_ms,
        clock=order.clock,
    )


def _openai(order: _Order) -> Backend:
    with _installed(order):
        from mac_runner.backends import openai
    openai.check(order.name, order.definition)
    order.refuse(openai.lacks(order.definition))
    return openai.build(order.name, order.definition, clock=order.clock, say=order.say, environ=os.environ)


def _ollama(order: _Order) -> Backend:
    config = order.definition.ollama_config
    assert config is not None
    with _installed(order):
        from mac_runner.backends import ollama
    order.refuse(Lacks(tokens=True))
    return ollama.OllamaBackend(
        name=order.name,
        config=config,
        settings=order.used_settings,
        is_pulling=order.is_pulling,
        clock=order.clock,
        say=order.say,
    )


def _vllm(order: _Order) -> Backend:
    config = order.definition.vllm_config
    assert config is not None
    from mac_runner.backends import vllm

    vllm.check_agents(order.name, order.agents)
    return vllm.VllmBackend(
        name=order.name, config=config, traces=order.definition.record_tokens, clock=order.clock, say=order.say
    )


def _nano(order: _Order) -> Backend:
    config = order.definition.nano_config
    assert config is not None
    from mac_runner.backends import nano

    nano.check_installed(order.name)
    return nano.NanoBackend(name=order.name, config=config, traces=order.definition.record_tokens, say=order.say)


_BUILDERS: dict[str, Callable[[_Order], Backend]] = {
    "scripted": _scripted,
    "openai": _openai,
    "ollama": _ollama,
    "vllm": _vllm,
    "nano": _nano,
}


@contextmanager
def _installed(order: _Order) -> Iterator[None]:
    """Around the import of a backend: a package that it needs and that is not there is told with how to get it."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("mac_runner"):
            raise
        backend = order.definition.backend
        raise ConfigError(
            f"model_definitions.{order.name}.backend: {backend!r} needs the package {missing.name!r}, which is not "
            f"installed; `pip install 'mac_runner[{backend}]'` installs it",
            key=("model_definitions", order.name, "backend"),
        ) from missing
