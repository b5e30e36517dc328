"""Kinds of conversation behind one contract (`base.Environment`, `base.Conversation`)."""

from __future__ import annotations

from mac_runner.environments.base import Conversation, Environment, Policy
from mac_runner.environments.registry import build_environment

__all__ = ["Conversation", "Environment", "Policy", "build_environment"]
