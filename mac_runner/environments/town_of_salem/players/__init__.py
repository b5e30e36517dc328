"""Scripted players: they see what their seat may see, and answer in the markup a model answers in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.players.heuristic import play_to_win
from mac_runner.environments.town_of_salem.players.uniform import play_at_random

__all__ = ["POLICIES"]

POLICIES: Mapping[str, Policy] = MappingProxyType({"heuristic": play_to_win, "random": play_at_random})
"""Name in YAML to scripted player."""
