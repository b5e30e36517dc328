"""Inference engines behind one contract (`base.Backend`), each in a package that `mac_runner.registry` names."""

from __future__ import annotations

from mac_runner.backends.base import Backend, BackendRequest, Unsupported

__all__ = ["Backend", "BackendRequest", "Unsupported"]
