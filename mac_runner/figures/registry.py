"""Which figures the conversations of an environment have. No page names an environment: all come from here.

An environment that is not listed, such as that of a plug-in, has the figures of its measures, and those that every run
has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, TypeAlias

from mac_runner.figures.differences import paired_sections
from mac_runner.figures.measures import measured_kind, measured_sections
from mac_runner.figures.model import RunData, Section, Study

_MODULES: Final[Mapping[str, str]] = {
    "discussion": "mac_runner.figures.discussion",
    "town_of_salem": "mac_runner.figures.town_of_salem",
}
"""The module of the figures of each environment, with functions as those below; imported when it is asked for."""

Sections: TypeAlias = Sequence[Section]


def run_sections(data: RunData) -> Sections:
    """The chapters of the environment of a run. Without any finished conversation there may be none."""
    if data.environment not in _MODULES:
        return measured_sections([data])
    found: Sections = import_module(_MODULES[data.environment]).run_sections(data)
    return found


def study_sections(study: Study) -> Sections:
    """The chapters that compare runs of one environment."""
    if study.reference.environment not in _MODULES:
        kind = measured_kind(study.runs)
        return () if kind is None else (*paired_sections(study, kind), *measured_sections(study.runs))
    found: Sections = import_module(_MODULES[study.reference.environment]).study_sections(study)
    return found
