"""What the members of the Town share."""

from __future__ import annotations

GOAL = "Win with the Town: see dead every member of the Mafia and whoever else kills for themselves."
