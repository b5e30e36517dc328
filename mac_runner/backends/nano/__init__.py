"""The engine of mac_runner itself, in this process: a model's directory is all it needs."""

from __future__ import annotations

from mac_runner.backends.nano.backend import NanoBackend
from mac_runner.backends.nano.installed import check_installed

__all__ = ["NanoBackend", "check_installed"]
