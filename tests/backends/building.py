"""From an entry of `model_definitions` to its backend, as an experiment has it built."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from mac_runner.backends import Backend, build_backend
from mac_runner.config import AgentDefinition, ModelDefinition
from tests.sim.loop import SimulatedClock


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
