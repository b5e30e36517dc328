"""Scripted players: they see what their seat may see, and answer in the markup a model answers in."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mac_runner.environments.base import Policy
from mac_runner.environments.town_of_salem.bots.policies import (
    play_at_random,
    play_in_silence,
    play_to_win,
    play_without_lies,
)

__all__ = ["POLICIES"]

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {"heuristic": play_to_win, "random": play_at_random, "silent": play_in_silence, "honest": play_without_lies}
)
"""Name in YAML to scripted player."""
