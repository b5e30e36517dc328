"""What every run has, whatever its environment: how its conversations ended, their length, unusable replies, outcomes.

Outcomes are those of environments that have no figures of their own, and the metrics of all. Where runs are compared,
conversations of one number and one seed are a pair: they share what chance decides.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from mac_runner.figures.charts import bars, forest, histogram
from mac_runner.figures.differences import Values, WithFailed, difference_figure, differences, failures_figure
from mac_runner.figures.measures import measured_figures
from mac_runner.figures.model import (
    DataColumn,
    Figure,
    Method,
    RunData,
    Section,
    Study,
    Value,
    interval_columns,
    number_text,
)
from mac_runner.intervals import ExactMean, one_cluster
from mac_runner.printable import counted
from mac_runner.registry import results_specs
from mac_runner.reports.failures import noted_defaults
from mac_runner.reports.outcomes import AGENTS, CONVERSATIONS, ended, outcome_measures
from mac_runner.results import DEFAULTS_NOTE, integer, objects, section
from mac_runner.rewards import WON

_BARS: Final = 24
_RUN: Final = DataColumn(name="run", title="run")
_LENGTHS: Final = (
    ("turns", "How many replies does a conversation take?", "replies"),
    ("prompt-tokens", "How many prompt tokens does a conversation take?", "tokens"),
    ("completion-tokens", "How many tokens of replies does a conversation take?", "tokens"),
)
_MEAN: Final = Method(
    statement="A mean over conversations has Student's 95 % interval. Conversations are independent of each other, but "
    "for those of one deal and for forks of one conversation: they are one cluster.",
    unit="conversation",
    interval="Student's t, 95 %",
)
_WON: Final = f"{WON} of agents"


@dataclass(frozen=True, slots=True)
class Lengths:
    """A number of each conversation, and their mean."""

    values: array[float] = field(default_factory=lambda: array("d"))
    mean: ExactMean = field(default_factory=ExactMean)

    def add(self, value: int) -> None:
        """Count a conversation."""
        self.values.append(value)
        self.mean.add(value)


def last_sections(runs: Sequence[RunData]) -> Iterator[Section]:
    """How long conversations were, and which replies could not be used."""
    if figures := (*length_figures(runs), *usability_figures(runs)):
        yield Section(id="length", title="Length and usable replies", figures=figures)


def endings_figure(runs: Sequence[RunData]) -> Figure:
    """How many conversations finished, failed by reason, and have not ended."""
    planned = sum(run.count("planned") for run in runs)
    return Figure(
        id="endings",
        title="How did the conversations end?",
        caption=f"{counted(planned, 'planned conversations')}. A failed one has no outcome, so it is a row of "
        "its own here and is left out of rates, unless a figure says that it counts as lost.",
        n=planned,
        unit="conversations",
        columns=(
            *([_RUN] if len(runs) > 1 else []),
            DataColumn(name="ending", title="ending"),
            DataColumn(name="count", title="conversations", kind="count"),
            DataColumn(name="share", title="share", kind="rate"),
            DataColumn(name="such_as", title="such as number", kind="conversations"),
        ),
        rows=tuple(row for run in runs for row in _endings(run)),
    )


def _endings(run: RunData) -> Iterator[dict[str, Value]]:
    planned = run.count("planned")
    ended = [("finished", run.count("finished"), "")]
    for reason in objects(run.summary.get("failures")):
        ids = reason.get("task_ids")
        numbers = [str(each).rpartition("-")[2].lstrip("0") or "0" for each in ids] if isinstance(ids, list) else []
        ended.append((f"failed: {reason.get('reason')}", integer(reason.get("count")) or 0, ", ".join(numbers)))
    if left := planned - run.count("finished") - run.count("failed"):
        ended.append(("not ended yet", left, ""))
    for ending, count, such in ended:
        share = count / planned if planned else None
        yield {"run": run.name, "ending": ending, "count": count, "share": share, "such_as": such, "slug": run.slug}


def length_figures(runs: Sequence[RunData]) -> Iterator[Figure]:
    """How many replies and tokens conversations take: a histogram of one run, means of several."""
    read = [(run.name, _lengths_of(run)) for run in runs]
    for place, (name, title, unit) in enumerate(_LENGTHS):
        lengths = [(run, found[place]) for run, found in read]
        n = sum(len(each.values) for _, each in lengths)
        if n < 2 or not any(any(each.values) for _, each in lengths):
            continue
        if len(runs) > 1:
            yield _means(name, title, unit, n, lengths)
            continue
        values = sorted(lengths[0][1].values)
        rows = tuple(classes(values))
        chart = histogram(rows, title=unit, counted="conversations")
        yield Figure(
            id=name,
            title=title,
            caption=f"{n:,} ended conversations; mean {number_text(sum(values) / n)}, median "
            f"{number_text(median(values))}, from {number_text(values[0])} to {number_text(values[-1])} {unit}.",
            n=n,
            unit="conversations",
            columns=(
                DataColumn(name="from", title="from", kind="number", unit=unit),
                DataColumn(name="to", title="below", kind="number", unit=unit),
                DataColumn(name="count", title="conversations", kind="count"),
            ),
            rows=rows,
            spec=None if values[0] == values[-1] else chart,
        )


def _lengths_of(run: RunData) -> Sequence[Lengths]:
    """Of each ended conversation its replies, its prompt tokens, and the tokens of its replies."""
    turns, prompt, completion = found = [Lengths() for _ in _LENGTHS]
    for row in run.ended():
        with one_cluster(row.cluster):
            turns.add(row.counts.turns)
            if row.tokens.is_counted:
                prompt.add(row.tokens.prompt)
                completion.add(row.tokens.completion)
    return found


def _means(name: str, title: str, unit: str, n: int, lengths: Sequence[tuple[str, Lengths]]) -> Figure:
    rows: list[dict[str, Value]] = []
    for run, mean in ((run, each.mean) for run, each in lengths if each.mean.n):
        # Counts are never below 0, and nor is the interval of their mean.
        lo, hi = (None, None) if mean.interval is None else (max(0.0, mean.interval.lo), mean.interval.hi)
        rows.append({"run": run, "n": mean.n, "mean": mean.mean, "lo": lo, "hi": hi})
    return Figure(
        id=name,
        title=title,
        caption=f"Mean over the ended conversations of each run, {n:,} in all, with 95 % interval.",
        n=n,
        unit="conversations",
        columns=(
            _RUN,
            DataColumn(name="n", title="n", kind="count"),
            DataColumn(name="mean", title="mean", kind="number", unit=unit),
            *interval_columns("number"),
        ),
        rows=tuple(rows),
        spec=forest(
            rows, label="run", value="mean", unit="number", title=f"{unit} per conversation", units="conversations"
        ),
        methods=(_MEAN,),
    )


def classes(values: Sequence[float], bars: int = _BARS) -> Iterator[dict[str, Value]]:
    """Counts of classes of equal whole width over sorted whole numbers."""
    least, most = values[0], values[-1]
    width = max(1.0, float(-(-int(most - least + 1) // bars)))
    counts = [0] * (int((most - least) / width) + 1)
    for value in values:
        counts[int((value - least) / width)] += 1
    for place, count in enumerate(counts):
        yield {"from": least + place * width, "to": least + (place + 1) * width, "count": count}


def usability_figures(runs: Sequence[RunData]) -> Iterator[Figure]:
    """Which replies could not be used, and how many led to a correction or a default act."""
    turns, corrections, defaults = (
        sum(integer(run.summary.get(key)) or 0 for run in runs) for key in ("turns", "corrections", "defaults")
    )
    if not turns:
        return
    counts = Counter[tuple[str, str, str]]()
    for run in runs:
        unusable = section(run.summary, "unusable_by_model")
        for model in unusable:
            counts.update({(run.name, model, cause): integer(n) or 0 for cause, n in section(unusable, model).items()})
    rows: list[dict[str, Value]] = [
        {"run": name, "model": model, "cause": cause, "count": count, "per_1000": 1000 * count / turns}
        for (name, model, cause), count in counts.most_common()
    ]
    # Bars stand in the order of what is stacked in them.
    stacked = Counter[tuple[str, str]]()
    for (name, model, cause), count in counts.most_common():
        stacked[cause, name if len(runs) > 1 else model] += count
    drawn: list[dict[str, Value]] = [
        {"cause": cause, "group": group, "count": count} for (cause, group), count in stacked.most_common()
    ]
    title = "replies that could not be used"
    yield Figure(
        id="unusable",
        title="Which replies could not be used, and why?",
        caption=f"{turns:,} replies of ended conversations. {corrections:,} could not be used and were sent back to be "
        f"corrected; {defaults:,} could not be used after that either, and the default act was taken.",
        n=turns,
        unit="replies",
        columns=(
            *([_RUN] if len(runs) > 1 else []),
            DataColumn(name="model", title="model"),
            DataColumn(name="cause", title="cause"),
            DataColumn(name="count", title="replies", kind="count"),
            DataColumn(name="per_1000", title="per 1,000 replies", kind="number"),
        ),
        rows=tuple(rows),
        spec=bars(drawn, label="cause", value="count", title=title, group="group") if rows else None,
        notes=(*_default_notes(runs),) if rows else ("Every reply could be used.",),
    )


def _default_notes(runs: Sequence[RunData]) -> Iterator[str]:
    for run in runs:
        if noted := noted_defaults(run.summary):
            yield f"{f'{run.name}: ' if len(runs) > 1 else ''}the default was often taken by {noted}."
            yield DEFAULTS_NOTE


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
