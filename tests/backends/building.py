"""From an entry of `model_definitions` to its backend, as an experiment has it built."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mac_runner.backends import Backend
from mac_runner.backends.testing import build_backend
from mac_runner.config import ModelDefinition
from mac_runner.planning.testing import SimulatedClock
from mac_runner.registry import backend_specs
from mac_runner.section import Section
from mac_runner.spec import AgentDefinition


def defined(settings: Section, **more: object) -> ModelDefinition:
    """A model definition with this section of a backend."""
    backend = next(name for name, spec in backend_specs().items() if isinstance(settings, spec.settings))
    return ModelDefinition.model_validate({"backend": backend, f"{backend}_config": settings, **more})


def say_nothing(view: object, chance: Random) -> str:
    """A scripted player without a word."""
    return ""


def built(
    definition: ModelDefinition,
    *agents: AgentDefinition,
    name: str = "m",
    policy: Callable[[object, Random], str] = say_nothing,
) -> Backend:
    """The backend of model `name`, not started; `policy` is every scripted player there is."""
    return build_backend(
        name,
        definition,
        agents=agents,
        policy_of=lambda _: policy,
        clock=SimulatedClock(),
        say=lambda line: None,
    )
