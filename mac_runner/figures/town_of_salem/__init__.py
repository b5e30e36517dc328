"""The figures of Town of Salem."""

from __future__ import annotations

from collections.abc import Sequence

from mac_runner.figures.data import RunData, Study
from mac_runner.figures.model import Section

__all__ = ["run_sections", "study_sections"]


def run_sections(_data: RunData) -> Sequence[Section]:
    """The chapters of a run."""
    return ()


def study_sections(_study: Study) -> Sequence[Section]:
    """The chapters that compare runs."""
    return ()
