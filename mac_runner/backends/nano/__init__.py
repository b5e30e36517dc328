"""The backend `nano`: the engine of mac_runner itself, in this process, on a model's directory."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from mac_runner.backends.base import Backend, BackendRequest
from mac_runner.backends.nano.settings import NanoConfig
from mac_runner.errors import MissingPackageError
from mac_runner.extras import install_command
from mac_runner.registry import CONSTRAINS_ALL, BackendSpec

__all__ = ["SPEC", "NanoConfig"]

NEEDED: Final = ("torch", "tokenizers", "safetensors", "jinja2", "numpy", "numba", "llvmlite", "llguidance")
"""What the extra `[nano]` installs, without the packages of its server and of token traces."""


def missing_packages() -> list[str]:
    """Those that are not installed here. Loads none of them, which would take seconds."""
    return [package for package in NEEDED if find_spec(package) is None]


def check_installed(name: str) -> None:
    """Raise MissingPackageError for model `name` if there is one."""
    if missing := missing_packages():
        text = f"'nano' needs {', '.join(missing)}, not installed here; `{install_command('nano')}` installs it"
        raise MissingPackageError.at(("model_definitions", name, "backend"), text)


def _build(request: BackendRequest[NanoConfig]) -> Backend:
    from mac_runner.backends.nano.backend import NanoBackend

    check_installed(request.name)
    return NanoBackend(request)


SPEC = BackendSpec(
    settings=NanoConfig,
    build=_build,
    describe=lambda settings: f"nano, {settings.model} in this process",
    constrains=lambda _settings: CONSTRAINS_ALL,
    honours=lambda _settings: frozenset({"thinking"}),
    packages=(*NEEDED, "pyarrow"),
    holds_memory=True,
)
