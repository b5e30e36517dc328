"""What this machine has for engines to run on: packages and GPUs."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from typing import Final, NamedTuple

from mac_runner.printable import printable
from mac_runner.registry import backend_specs

NVIDIA_SMI_S_MAX: Final = 20.0
_QUERY: Final = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,memory.free,driver_version",
    "--format=csv,noheader",
)


class Packages(NamedTuple):
    """Which packages are there, each with its version, and which are not."""

    installed: tuple[str, ...]
    missing: tuple[str, ...]


class Gpus(NamedTuple):
    """The GPUs, a line each; `silence` says why there are none."""

    lines: tuple[str, ...]
    silence: str = ""


def machine() -> str:
    """Python and what it runs on."""
    return f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"


def packages() -> Packages:
    """The packages of all backends, by the names they are installed under."""
    installed, missing = [], []
    for name in dict.fromkeys(package for spec in backend_specs().values() for package in spec.packages):
        try:
            installed.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return Packages(tuple(installed), tuple(missing))


def gpus() -> Gpus:
    """The GPUs as NVIDIA's own tool tells them."""
    try:
        told = subprocess.run(  # noqa: S603 - fixed words
            _QUERY, capture_output=True, text=True, errors="replace", timeout=NVIDIA_SMI_S_MAX, check=False
        )
    except FileNotFoundError:
        return Gpus((), "none: nvidia-smi is not installed")
    except (OSError, subprocess.TimeoutExpired) as fault:
        return Gpus((), f"unknown: nvidia-smi cannot be run: {fault}")
    if told.returncode != 0:
        words = printable(" ".join((told.stdout + told.stderr).split())[:200])
        return Gpus((), f"unknown: nvidia-smi ended with code {told.returncode}: {words}")
    lines = tuple(printable(line.strip()) for line in told.stdout.splitlines() if line.strip())
    return Gpus(lines, "" if lines else "none: nvidia-smi lists none")
