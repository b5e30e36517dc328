"""Figures of discussions: how right answers were, how biased, who changed after whom, and combinations compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mac_runner.config import recorded_speakers
from mac_runner.environments.discussion.measures import ACCURACY, CONFORMITY, MEASURES
from mac_runner.environments.discussion.results import DiscussionResults
from mac_runner.figures.charts import heat
from mac_runner.figures.differences import WithFailed, failures_figure, paired_sections, rate_columns
from mac_runner.figures.measures import counted, measured_figures, numbers_of, rate_methods
from mac_runner.figures.model import DataColumn, Figure, RunData, Section, Study, Value
from mac_runner.measures import Counted
from mac_runner.registry import results_specs
from mac_runner.reports.failures import by_model
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
    before = {"influence": _transitions(report), "course": [_course(report)]}
    return _sections([found], {name: before.get(name, ()) for name in _CHAPTERS})


def study_sections(study: Study) -> tuple[Section, ...]:
    """The chapters that compare runs over the questions that they share."""
    read = {data.name: _read(data) for data in study.runs}
    begun = [found for found in read.values() if section(found.summary, "discussions").get("n")]
    if not begun:
        return ()
    baseline = read[study.reference.name].data.name
    return (
        *paired_sections(replace(study, runs=[found.data for found in read.values()], baseline=baseline), "discussion"),
        *_sections([*read.values()], {"accuracy": (), "bias": (), "": ()}, has_runs=True),
    )


def _sections(
    read: Sequence[_Read], before: Mapping[str, Iterable[Figure]], *, has_runs: bool = False
) -> tuple[Section, ...]:
    """Chapters: the figures that each begins with, those of the measures, and that of failed discussions."""
    measures = (*results_specs()["discussion"].measures, CONFORMITY)
    summaries = {found.data.name: found.summary for found in read}
    failed = _failed([(found.data, found.results.counted) for found in read])
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
        for name, found in ended.counts.turns_by_definition.items():
            taken[name].update(turns=found.turns, defaults=found.defaults)
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


_TRANSITIONS: Final = {
    "stance_ambiguous": "What became of first answers in ambiguous contexts?",
    "stance_disambiguated": "What became of first answers in disambiguated contexts?",
    "correctness": "Did right answers stay right?",
}


def _course(report: JsonObject) -> Figure:
    """The rates of the chapter over all discussions: the measures that tell nothing apart."""
    n = integer(report.get("n")) or 0
    measures = [measure for measure in MEASURES if measure.chapter == "course" and not measure.names]
    rows = [
        {"what": one.value, **numbers_of(one, row)} for one in measures for row in one.rows({"discussions": report})
    ]
    return Figure(
        id="course",
        title="How often do discussions end in agreement, and how often do answers change?",
        caption=f"{n:,} finished discussions, with {report.get('rounds_mean')} rounds on average. Endings: "
        f"{', '.join(f'{name} {count}' for name, count in section(report, 'ended_by').items())}.",
        n=n,
        unit="discussions",
        columns=(DataColumn(name="what", title="what"), *rate_columns("share", "rate", "cases")),
        rows=tuple(rows),
        methods=rate_methods(measures[0], rows),
    )


def _transitions(report: JsonObject) -> Iterator[Figure]:
    """From the kind of first answers to the kind of last ones."""
    for kind, title in _TRANSITIONS.items():
        counts = section(section(section(report, "transitions"), kind), "first_to_final")
        found = {before: {after: integer(n) or 0 for after, n in section(counts, before).items()} for before in counts}
        afters = [after for after in counts if any(of.get(after) for of in found.values())]
        rows: list[dict[str, Value]] = []
        for before, of in found.items():
            for after in afters if (n := sum(of.values())) else ():
                count = of.get(after, 0)
                text = f"{count} ({count / n:.0%})"
                rows.append({"before": before, "after": after, "count": count, "share": count / n, "text": text})
        if not rows:
            continue
        n = sum(int(row["count"] or 0) for row in rows)
        yield Figure(
            id=f"transitions-{kind.replace('_', '-')}",
            title=title,
            caption=f"{n:,} participants of finished discussions: the kind of their first answer (rows) and of their "
            "last (columns), as counts and shares of the row.",
            n=n,
            unit="participants",
            columns=(
                DataColumn(name="before", title="first"),
                DataColumn(name="after", title="last"),
                DataColumn(name="count", title="participants", kind="count"),
                DataColumn(name="share", title="of the row", kind="rate"),
            ),
            rows=tuple(rows),
            spec=heat(
                rows,
                across="after",
                down="before",
                value="share",
                titles=("last answer", "first answer"),
            ),
        )


def _failed(runs: Sequence[tuple[RunData, Counted]]) -> Figure | None:
    rates, failed, finished = list[WithFailed](), 0, 0
    for data, found in runs:
        missing = sum(ended.result is None for ended in data.ended())
        failed += missing
        for (kind, *_), right in found.kept[ACCURACY.place].items():
            words, rate = ACCURACY.told("answers").said(str(kind)), right.asked
            finished += rate.conversations if kind == "group" and missing else 0
            cases = round(rate.n / max(1, rate.conversations))
            rates.append(WithFailed(words, data.name, rate.clustered(), missing, cases))
    return failures_figure(
        rates,
        name="accuracy-with-failed",
        title="How often are answers right if failed discussions count as wrong?",
        lost="wrong answers of all its participants and of the group",
        failed=failed,
        finished=finished,
        units="discussions",
    )
