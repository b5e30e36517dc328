"""Figures of discussions: how right answers were, how biased, who changed after whom, and combinations compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mac_runner.config import recorded_speakers
from mac_runner.environments.discussion.measures import CONFORMITY
from mac_runner.environments.discussion.results import DiscussionResults
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.discussion.course import course_figure, transition_figures
from mac_runner.figures.discussion.differences import difference_figures
from mac_runner.figures.discussion.failed import failed_figure
from mac_runner.figures.measures import counted, measured_figures
from mac_runner.figures.model import Figure, Section
from mac_runner.registry import results_specs
from mac_runner.reports.usability import by_model
from mac_runner.results import default_shares, integer, section, with_defaults
from mac_runner.types import JsonObject

_CHAPTERS: Final = {
    "accuracy": "Accuracy",
    "bias": "Bias",
    "influence": "Influence",
    "course": "Course and consensus",
    "": "Results",
}


class _Read(NamedTuple):
    """A run, under a name that says how often its agents took their default, and its discussions counted."""

    data: RunData
    results: DiscussionResults
    summary: JsonObject


def run_sections(data: RunData) -> tuple[Section, ...]:
    """The chapters of a run; none without a finished discussion."""
    found = _read(data)
    report = section(found.summary, "discussions")
    if not report.get("n"):
        return ()
    before = {"influence": transition_figures(report), "course": [course_figure(report)]}
    return _sections([found], {name: before.get(name, ()) for name in _CHAPTERS})


def study_sections(study: Study) -> tuple[Section, ...]:
    """The chapters that compare runs over the questions that they share."""
    read = {data.name: _read(data) for data in study.runs}
    begun = [found for found in read.values() if section(found.summary, "discussions").get("n")]
    if not begun:
        return ()
    baseline = read[study.reference.name].data.name
    differences = difference_figures(replace(study, runs=[found.data for found in read.values()], baseline=baseline))
    first = Section(id="differences", title="Differences from the baseline", figures=differences)
    return (
        *((first,) if differences else ()),
        *_sections([*read.values()], {"accuracy": (), "bias": (), "": ()}, has_runs=True),
    )


def _sections(
    read: Sequence[_Read], before: Mapping[str, Iterable[Figure]], *, has_runs: bool = False
) -> tuple[Section, ...]:
    """Chapters: the figures that each begins with, those of the measures, and that of failed discussions."""
    measures = (*results_specs()["discussion"].measures, CONFORMITY)
    summaries = {found.data.name: found.summary for found in read}
    failed = failed_figure([(found.data, found.results.counted) for found in read])
    chapters = {
        name: (*first, *measured_figures(measures, summaries, has_runs=has_runs, chapter=name))
        for name, first in before.items()
    }
    chapters["accuracy"] += () if failed is None else (failed,)
    return tuple(
        Section(id=name or "results", title=_CHAPTERS[name], figures=each) for name, each in chapters.items() if each
    )


def _read(data: RunData) -> _Read:
    """Count the discussions of a run.

    The names of the run, its agents and its models say how often these took their default, where that has to be said.
    """
    results = DiscussionResults((*results_specs()["discussion"].measures, CONFORMITY))
    summary = counted(results, data).report()
    taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for ended in data.ended():
        found = section(section(ended.row, "counts"), "turns_by_definition")
        for name in found:
            taken[name].update({key: integer(count) or 0 for key, count in section(found, name).items()})
    turns: JsonObject = {name: {**counts} for name, counts in taken.items()}
    agents, models, whole = (
        default_shares({"turns_by_definition": by_model(turns, names)})
        for names in ({}, recorded_speakers(data.experiment), dict.fromkeys(turns, data.name))
    )
    report = section(summary, "discussions")
    moved = section(report, "moved")
    rows: dict[str, tuple[JsonObject, Mapping[str, float]]] = {
        "by_agent": (section(report, "by_agent"), agents),
        "by_model": (section(report, "by_model"), models),
        "moved": ({author: _named(section(moved, author), agents) for author in moved}, agents),
    }
    named = {key: _named(*of) for key, of in rows.items()}
    name = with_defaults(data.name, whole.get(data.name))
    return _Read(replace(data, name=name), results, {**summary, "discussions": {**report, **named}})


def _named(rows: JsonObject, shares: Mapping[str, float]) -> JsonObject:
    """The same rows, under names that say how often each took its default."""
    return {with_defaults(name, shares.get(name)): row for name, row in rows.items()}
