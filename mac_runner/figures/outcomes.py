"""What came out of conversations whose environment has no figures of its own, the metrics of all, and how runs differ.

Conversations of one number and one seed are a pair: they share what chance decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from mac_runner.figures.data import RunData, Study
from mac_runner.figures.differences import Values, difference_figure, differences
from mac_runner.figures.estimates import WithFailed, failures_figure
from mac_runner.figures.measures import measured_figures
from mac_runner.figures.model import Figure, Section
from mac_runner.printable import counted
from mac_runner.registry import results_specs
from mac_runner.reports.outcomes import AGENTS, CONVERSATIONS, ended, outcome_measures
from mac_runner.rewards import WON

_WON: Final = f"{WON} of agents"


def outcome_sections(runs: Sequence[RunData]) -> Iterator[Section]:
    """The values of outcomes without results of their own, and the metrics."""
    summaries = {run.name: run.summary for run in runs}
    measures = [*outcome_measures(*summaries.values())]
    figures = measured_figures(measures, summaries, has_runs=len(runs) > 1)
    if found := (*figures, *filter(None, [failed_figure(runs)])):
        yield Section(id="outcomes", title="Outcomes", figures=found)


def failed_figure(runs: Sequence[RunData]) -> Figure | None:
    """Each rate of outcomes with and without failed conversations; None where none failed."""
    values = values_of(runs)
    rates = [
        WithFailed(
            name, run.name, rate := each.clustered(), run.count("failed"), cases=round(rate.n / max(1, rate.games))
        )
        for run in runs
        for name, each in values[run.name].items()
        if each.is_rate
    ]
    return failures_figure(
        rates,
        name="rates-with-failed",
        title="What are the rates if failed conversations count as lost?",
        lost="not won, or not true, of all its agents",
        failed=sum(run.count("failed") for run in runs),
        finished=sum(run.count("finished") for run in runs),
        units="conversations",
    )


def comparison_sections(study: Study) -> Iterator[Section]:
    """The differences of all values from the baseline, in one family."""
    found, baseline = values_of(study.runs), study.reference.name
    rows = differences(found, baseline, [*found[baseline]])
    figures = [
        figure
        for what, is_rate in (("rates", True), ("means", False))
        for figure in difference_figure(
            [row for row in rows if (row.unit == "rate") is is_rate],
            name=f"difference-{what}",
            title=f"Which {what} of outcomes differ from the baseline's?",
            caption=f"Difference from {baseline}.",
            by=["outcome", "run"],
            cluster="conversation",
            family=counted(len(rows), "comparisons"),
        )
    ]
    if figures:
        yield Section(id="value-differences", title="Values compared", figures=tuple(figures))


def values_of(runs: Iterable[RunData]) -> dict[str, dict[str, Values]]:
    """By run and name, the values of finished conversations: of outcomes counted as they are, and of metrics."""
    found: dict[str, dict[str, Values]] = {}
    has_winners = False
    for data in runs:
        found[data.name], shows_winners = _values(data)
        has_winners |= shows_winners
    if not has_winners:
        # Draws alone do not show that winners are agents.
        return {name: {key: each for key, each in of_run.items() if key != _WON} for name, of_run in found.items()}
    return found


def _values(data: RunData) -> tuple[dict[str, Values], bool]:
    """The values of a run, and whether its outcomes show that winners are agents."""
    found: dict[str, Values] = {}
    has_winners = False
    for row in data.ended():
        if row.reason is not None:
            continue
        values: dict[str, Sequence[float]] = {}
        if isinstance(row.outcome, dict) and row.outcome.get("kind") not in results_specs():
            one = ended(row.outcome, row.agents)
            has_winners = has_winners or one.has_winners
            values = {str(key): [value] for (key,), value in CONVERSATIONS.cases(one)}
            values |= {f"{key} of agents": each for (key,), each in AGENTS.cases(one)}
        values |= {f"metric {name}": [value] for name, value in row.metrics.items() if value is not None}
        cluster = data.experiment.get("seed"), row.index if row.cluster is None else row.cluster
        for name, each in values.items():
            before = found.get(name, Values({}))
            before.add(cluster, math.fsum(each), len(each))
            found[name] = before._replace(is_rate=before.is_rate and all(isinstance(value, bool) for value in each))
    return found, has_winners
