"""Whether what the engine computes with is installed, found out without loading it, which takes seconds."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from mac_runner.errors import ConfigError

NEEDED: Final = ("torch", "numba", "llvmlite", "numpy", "safetensors", "tokenizers", "jinja2", "llguidance")
"""What the extra `[nano]` installs, but for what only its server needs."""


def check_installed(name: str) -> None:
    """Raises ConfigError for model `name` when a package is not there."""
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        key = ("model_definitions", name, "backend")
        raise ConfigError(
            f"{'.'.join(key)}: 'nano' needs {', '.join(missing)}, not installed here; "
            "`pip install 'mac_runner[nano]'` installs it",
            key=key,
        )
