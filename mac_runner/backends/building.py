"""From an entry of `model_definitions` to the backend that serves it.

What an experiment asks of a backend is checked here, before a run directory is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.delayed import DelayedBackend
from mac_runner.clock import Clock
from mac_runner.config import AgentDefinition, ModelDefinition
from mac_runner.errors import ConfigError
from mac_runner.registry import backend_specs


def build_backend(
    name: str,
    definition: ModelDefinition,
    *,
    agents: Sequence[AgentDefinition],
    policy_of: Callable[[str], Callable[[object, Random], str]],
    clock: Clock,
    say: Callable[[str], None],
    can_pull: bool = False,
) -> Backend:
    """The backend of model `name`, not started. Raises ConfigError for a setting that the backend cannot honour.

    `agents` are all of the experiment's; `policy_of` finds a scripted player by its name and raises ConfigError where
    there is none; `say` takes lines about what takes long; `can_pull` lets an engine fetch a model it does not have.
    """
    request = BackendRequest(
        name=name,
        backend=definition.backend,
        settings=definition.settings,
        record_tokens=definition.record_tokens,
        agents=agents,
        policy_of=policy_of,
        clock=clock,
        say=say,
        can_pull=can_pull,
    )
    try:
        backend = backend_specs()[definition.backend].build(request)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("mac_runner"):
            raise
        raise ConfigError(
            f"model_definitions.{name}.backend: {definition.backend!r} needs the package {missing.name!r}, which is "
            f"not installed; `pip install 'mac_runner[{definition.backend}]'` installs it",
            key=("model_definitions", name, "backend"),
        ) from missing
    return backend if definition.latency is None else DelayedBackend(backend, definition.latency, clock)
