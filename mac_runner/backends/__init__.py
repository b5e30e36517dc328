"""Inference engines behind one contract (`base.Backend`)."""

from __future__ import annotations

from mac_runner.backends.base import Backend
from mac_runner.backends.delayed import DelayedBackend
from mac_runner.backends.registry import PULLING, build_backend
from mac_runner.backends.scripted import ScriptedBackend

__all__ = ["PULLING", "Backend", "DelayedBackend", "ScriptedBackend", "build_backend"]
