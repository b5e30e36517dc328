"""The figures that every run has, whatever its environment: endings, lengths, replies, engines, costs, outcomes."""

from __future__ import annotations

from mac_runner.figures.every_run.comparison import comparison_sections
from mac_runner.figures.every_run.played import Played, played
from mac_runner.figures.every_run.sections import engine_section, first_sections, last_sections

__all__ = ["Played", "comparison_sections", "engine_section", "first_sections", "last_sections", "played"]
