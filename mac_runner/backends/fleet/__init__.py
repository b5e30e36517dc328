"""The backend `fleet`: a model behind engines that mac_runner starts and watches on this machine."""

from __future__ import annotations

from collections.abc import Iterator

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.fleet.checks import check
from mac_runner.backends.fleet.settings import FleetModelConfig
from mac_runner.errors import ConfigError
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec

__all__ = ["SPEC", "FleetModelConfig"]


def _build(request: BackendRequest[FleetModelConfig]) -> Backend:
    raise ConfigError(f"model_definitions.{request.name}.backend: 'fleet' cannot be played yet")


def _variants(settings: FleetModelConfig) -> Iterator[tuple[str, FleetModelConfig]]:
    yield f"fleet, {settings.model} on {settings.engine}", settings


SPEC = BackendSpec(
    settings=FleetModelConfig,
    build=_build,
    variants=_variants,
    check=check,
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"reasoning_effort", "thinking"}),
    packages=("aiohttp",),
    connections=lambda settings: settings.max_num_seqs,
)
