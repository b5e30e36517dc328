"""Which figures the conversations of an environment have. No page names an environment: all come from here.

An environment that is not listed, such as that of a plug-in, has the figures of its measures, and those that every run
has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Protocol, TypeAlias

from mac_runner.figures.data import RunData, Study
from mac_runner.figures.measures import measured_sections
from mac_runner.figures.model import Section

_MODULES: Final[Mapping[str, str]] = {
    "discussion": "mac_runner.figures.discussion",
    "town_of_salem": "mac_runner.figures.town_of_salem",
}
"""The module of the figures of each environment, imported when it is asked for."""

Sections: TypeAlias = Sequence[Section]


class EnvironmentFigures(Protocol):
    """What a module of figures offers."""

    def run_sections(self, data: RunData) -> Sections:
        """The chapters of a run. Without any finished conversation there may be none."""
        ...

    def study_sections(self, study: Study) -> Sections:
        """The chapters that compare runs."""
        ...


def environment_figures(environment: str) -> EnvironmentFigures | None:
    """The figures of an environment; None where it has none of its own."""
    if (name := _MODULES.get(environment)) is None:
        return None
    module: Any = import_module(name)
    figures: EnvironmentFigures = module
    return figures


def run_sections(data: RunData) -> Sections:
    """The chapters of the environment of a run."""
    own = environment_figures(data.environment)
    return measured_sections([data]) if own is None else own.run_sections(data)


def study_sections(study: Study) -> Sections:
    """The chapters that compare runs of one environment."""
    own = environment_figures(study.reference.environment)
    return measured_sections(study.runs) if own is None else own.study_sections(study)
