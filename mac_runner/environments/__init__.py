"""Kinds of conversation behind one contract (`base`), each in a package that `mac_runner.registry` names."""

from __future__ import annotations

from mac_runner.environments.base import Conversation, Environment, Policy
from mac_runner.environments.checked import build_environment

__all__ = ["Conversation", "Environment", "Policy", "build_environment"]
