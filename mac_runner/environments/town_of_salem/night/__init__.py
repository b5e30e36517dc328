"""One night: the order in which it is resolved (rules, section 6)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.night.pipeline import play_out, resolve
from mac_runner.environments.town_of_salem.roles.base import Attack, Judged, NightState, Note, Visit

__all__ = ["Attack", "Judged", "NightState", "Note", "Visit", "play_out", "resolve"]
