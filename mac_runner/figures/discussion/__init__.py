"""Figures of discussions: how right answers were, how biased, who changed after whom, and combinations compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mac_runner.config import recorded_speakers
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
from mac_runner.reports.usability import by_model
from mac_runner.results import default_shares, integer, section, with_defaults
from mac_runner.types import JsonObject


def run_sections(data: RunData) -> tuple[Section, ...]:
    """The chapters of a run; none without a finished discussion."""
    _, report = _read(data)
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
    read = [_read(data) for data in study.runs]
    reports = [(data.name, report) for data, report in read if report]
    if not reports:
        return ()
    # Rows of a run say how often its agents took their default.
    named = {old.name: data.name for old, (data, _) in zip(study.runs, read, strict=True)}
    study = replace(study, runs=[data for data, _ in read], baseline=named[study.reference.name])
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


def _read(data: RunData) -> tuple[RunData, JsonObject]:
    """What the summary of the run says of discussions; empty without any.

    The names of the run, its agents and its models say how often these took their default, where that has to be said.
    """
    counted = DiscussionResults()
    taken: defaultdict[str, Counter[str]] = defaultdict(Counter)
    n = 0
    for ended in data.ended():
        found = section(section(ended.row, "counts"), "turns_by_definition")
        for name in found:
            taken[name].update({key: integer(count) or 0 for key, count in section(found, name).items()})
        if ended.outcome is not None:
            with one_cluster(ended.cluster):
                counted.add(ended.outcome, f"the index row of {ended.task_id!r}, outcome")
            n += 1
    if not n:
        return data, {}
    turns: JsonObject = {name: {**counts} for name, counts in taken.items()}
    agents, models, whole = (
        default_shares({"turns_by_definition": by_model(turns, names)})
        for names in ({}, recorded_speakers(data.experiment), dict.fromkeys(turns, data.name))
    )
    report = section(counted.report(), "discussions")
    moved = section(report, "moved")
    rows: dict[str, tuple[JsonObject, Mapping[str, float]]] = {
        "by_agent": (section(report, "by_agent"), agents),
        "by_model": (section(report, "by_model"), models),
        "moved": ({author: _named(section(moved, author), agents) for author in moved}, agents),
    }
    named = {key: _named(*of) for key, of in rows.items()}
    return replace(data, name=with_defaults(data.name, whole.get(data.name))), {**report, **named}


def _named(rows: JsonObject, shares: Mapping[str, float]) -> JsonObject:
    """The same rows, under names that say how often each took its default."""
    return {with_defaults(name, shares.get(name)): row for name, row in rows.items()}
