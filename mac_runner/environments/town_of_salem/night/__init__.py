"""One night: what the abilities write on, and the order in which it is resolved (rules, section 6)."""

from __future__ import annotations

from mac_runner.environments.town_of_salem.night.pad import Attack, Judged, Night, Note, Visit
from mac_runner.environments.town_of_salem.night.pipeline import play_out, resolve

__all__ = ["Attack", "Judged", "Night", "Note", "Visit", "play_out", "resolve"]
