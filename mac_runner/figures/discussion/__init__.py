"""Figures of discussions: how right answers were, how biased, who changed after whom, and combinations compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mac_runner.environments.discussion.results.counter import DiscussionResults
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.discussion.accuracy import accuracy_figures, compared_accuracy
from mac_runner.figures.discussion.bias import bias_figures, compared_bias
from mac_runner.figures.discussion.conformity import conformity_figure
from mac_runner.figures.discussion.course import course_figures
from mac_runner.figures.discussion.differences import difference_figures
from mac_runner.figures.discussion.failed import failed_figure
from mac_runner.figures.discussion.influence import influence_figures
from mac_runner.figures.model import Figure, Section
from mac_runner.intervals import one_cluster
from mac_runner.results import section
from mac_runner.types import JsonObject


def run_sections(data: RunData) -> tuple[Section, ...]:
    """The chapters of a run; none without a finished discussion."""
    report = _report(data)
    if not report:
        return ()
    conformity = conformity_figure(data)
    failed = tuple(filter(None, [failed_figure([data])]))
    found = (
        ("accuracy", "Accuracy", (*accuracy_figures(report), *failed)),
        ("bias", "Bias", (*bias_figures(report),)),
        ("influence", "Influence", (*influence_figures(report), *((conformity,) if conformity is not None else ()))),
        ("course", "Course and consensus", (*course_figures(report),)),
    )
    return tuple(Section(id=name, title=title, figures=figures) for name, title, figures in found if figures)


def study_sections(study: Study) -> tuple[Section, ...]:
    """The chapters that compare runs over the questions that they share."""
    reports = [(data.name, report) for data in study.runs if (report := _report(data))]
    if not reports:
        return ()
    differences: Sequence[Figure] = difference_figures(study)
    failed = tuple(filter(None, [failed_figure(study.runs)]))
    found: Iterator[tuple[str, str, tuple[Figure, ...]]] = iter(
        (
            ("differences", "Differences from the baseline", (*differences,)),
            ("accuracy", "Accuracy", (*compared_accuracy(reports), *failed)),
            ("bias", "Bias", (*compared_bias(reports),)),
        )
    )
    return tuple(Section(id=name, title=title, figures=figures) for name, title, figures in found if figures)


def _report(data: RunData) -> JsonObject:
    """What the summary of the run says of discussions; empty without any."""
    counted = DiscussionResults()
    n = 0
    for ended in data.ended():
        if ended.outcome is not None:
            with one_cluster(ended.cluster):
                counted.add(ended.outcome, f"the index row of {ended.task_id!r}, outcome")
            n += 1
    return section(counted.report(), "discussions") if n else {}
