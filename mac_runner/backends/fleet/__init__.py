"""The backend `fleet`: a model behind engines that mac_runner starts and watches on this machine."""

from __future__ import annotations

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.fleet.settings import FleetModelConfig, as_openai, check, honours, unsupported
from mac_runner.backends.openai import constrains
from mac_runner.registry import BackendSpec

__all__ = ["SPEC", "FleetModelConfig"]


def _build(request: BackendRequest[FleetModelConfig]) -> Backend:
    from mac_runner.backends.fleet.backend import FleetBackend

    request.refuse(unsupported(request.settings))
    return FleetBackend(request)


SPEC = BackendSpec(
    settings=FleetModelConfig,
    build=_build,
    describe=lambda settings: f"fleet, {settings.model} on {settings.engine}",
    check=check,
    constrains=lambda settings: constrains(as_openai(settings)),
    honours=honours,
    packages=("aiohttp",),
    connections=lambda settings: settings.max_num_seqs,
)
