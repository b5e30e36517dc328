"""One night: what the abilities write on, and the order in which it is resolved (rules, section 6)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.night.pad import Attack, Night, Visit
from mac_runner.environments.town_of_salem.night.pipeline import resolve

__all__ = ["Attack", "Night", "Visit", "resolve"]
