"""The installed release of vLLM: whether it can be used, and which arguments its engine takes.

Finding that out imports nothing of vLLM: an import takes seconds, and a misspelt key is to be told at once.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from mac_runner.errors import ConfigError

OLDEST: Final = (0, 31)
"""The oldest release that has the names in `library`. docs/engines.md says which releases were run."""

_ARGUMENT_CLASSES: Final = frozenset({"EngineArgs", "AsyncEngineArgs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """An installed vLLM that can be used: its version, and every argument that an engine of it takes."""

    version: str
    arguments: frozenset[str]


def find_release() -> Release:
    """The installed release. Raises ConfigError when there is none, or none that can be used."""
    spec = find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("vLLM is not installed; install mac_runner[vllm], or choose another backend")
    version = _version()
    check_version(version)
    path = Path(spec.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    arguments = argument_names(SourceFileLoader("arg_utils", str(path)).get_source("arg_utils") or "")
    if not arguments:
        raise ConfigError(f"vLLM {version} does not tell its engine arguments in {path}; install an older one")
    return Release(version=version, arguments=arguments)


def check_version(version: str) -> None:
    """Raises ConfigError for a release older than OLDEST. A newer one than was ever run may well do."""
    parts = version.split(".")[:2]
    if all(part.isdigit() for part in parts) and tuple(map(int, parts)) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ConfigError(f"vLLM {version} is installed, and {oldest} or newer is needed; install mac_runner[vllm]")


def argument_names(source: str) -> frozenset[str]:
    """The arguments an engine takes, read off the source of vLLM's two classes of them."""
    return frozenset(
        statement.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name in _ARGUMENT_CLASSES
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and not statement.target.id.startswith("_")
    )


def _version() -> str:
    """By the name it was installed under: builds for other hardware than NVIDIA's have names of their own."""
    names = metadata.packages_distributions().get("vllm", ())
    return metadata.version(names[0]) if names else "of unknown version"
