"""From an entry of `model_definitions` to the backend that serves it.

What an experiment asks of a backend is checked here, before a run directory is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from random import Random
from typing import NoReturn

from mac_runner.backends.base import Backend, BackendRequest, Form
from mac_runner.backends.fleet.settings import FleetModelConfig, ModelLanes
from mac_runner.clock import Clock
from mac_runner.config import ModelDefinition, decoding_of
from mac_runner.errors import ConfigError, MissingPackageError
from mac_runner.extras import install_command
from mac_runner.spec import AgentDefinition


def build_backend(
    name: str,
    definition: ModelDefinition,
    *,
    agents: Sequence[AgentDefinition],
    policy_of: Callable[[str], Callable[[object, Random], str]],
    clock: Clock,
    say: Callable[[str], None],
    can_pull: bool = False,
    lanes: ModelLanes | None = None,
) -> Backend:
    """The backend of model `name`, not started. Raises ConfigError for a setting that the backend cannot honour.

    The parameters are the fields of `BackendRequest`; `agents` are all agents of the experiment.
    """
    if definition.record_tokens and find_spec("pyarrow") is None:
        text = f"true needs the package 'pyarrow', which is not installed; `{install_command('data')}` installs it"
        raise MissingPackageError.at(("model_definitions", name, "record_tokens"), text)
    spec, decoding = definition.spec, decoding_of(definition)
    request = BackendRequest(
        name=name,
        backend=definition.backend,
        settings=definition.backend_settings,
        record_tokens=definition.record_tokens,
        decoding=decoding,
        agents=agents,
        policy_of=policy_of,
        clock=clock,
        say=say,
        can_pull=can_pull,
        lanes=lanes,
    )
    try:
        backend = spec.build(request)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("mac_runner"):
            raise
        text = f"{definition.backend!r} needs the package {missing.name!r}, which is not installed; "
        text += f"`{install_command(definition.backend)}` installs it"
        raise MissingPackageError.at(("model_definitions", name, "backend"), text) from missing
    if not isinstance(backend, Backend):
        raise ConfigError.at(
            ("model_definitions", name, "backend"),
            f"{definition.backend!r} builds a {type(backend).__name__}, which is no backend; let its class inherit "
            "from mac_runner.backends.Backend",
        )
    if can := spec.constrains(definition.backend_settings):
        backend.form = Form(name, decoding, can)
    backend.latency = definition.latency
    return backend


def backend_on_fleet(
    name: str, settings: FleetModelConfig, lanes: ModelLanes, *, clock: Clock, say: Callable[[str], None]
) -> Backend:
    """The backend of a model of a fleet without an experiment: no agents, and no form of replies."""
    definition = ModelDefinition.model_validate(
        {"backend": "fleet", "fleet_config": settings, "constrained_decoding": "none"}
    )
    return build_backend(name, definition, agents=(), policy_of=_no_policy, clock=clock, say=say, lanes=lanes)


def _no_policy(name: str) -> NoReturn:
    raise ConfigError(f"there is no scripted player {name!r} on a fleet")
