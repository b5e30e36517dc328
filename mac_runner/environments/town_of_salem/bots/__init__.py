"""Scripted players: they see what their seat may see, and answer in the markup a model answers in."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.bots.policies import POLICIES

__all__ = ["POLICIES"]
