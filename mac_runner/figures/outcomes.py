"""What came out of conversations whose environment has no figures of its own, the metrics of all, and how runs differ.

Conversations of one number are pairs where all runs have one seed: they share what chance decides. Else the runs are
independent of each other, and the figure says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from mac_runner.compared import Comparison, compare, compare_apart, compare_means, how_paired, with_q
from mac_runner.figures.charts import forest
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.estimates import WithFailed, failures_figure
from mac_runner.figures.every_run import Played
from mac_runner.figures.measures import measured_figures
from mac_runner.figures.model import DataColumn, Figure, Method, Section, Value, interval_columns
from mac_runner.intervals import ClusteredRate
from mac_runner.registry import results_specs
from mac_runner.reports.outcomes import AGENTS, CONVERSATIONS, ended, outcome_measures
from mac_runner.reports.rows import parse_row
from mac_runner.rewards import WON
from mac_runner.types import JsonObject

_PAIRED: Final = (
    "Values of two runs are compared over the conversations of the same number, which have the same seed. Interval and "
    f"p are of one test: of rates {how_paired('conversation')}; of means Student's of the paired differences"
)
_UNPAIRED: Final = (
    "The runs have different seeds, so their conversations are not pairs. The difference of two rates has Newcombe's "
    "interval with conversations as clusters, that of two means Welch's; p is of the same comparison"
)
_WON: Final = f"{WON} of agents"
Deal: TypeAlias = int | str
"""The number of a conversation, or the cluster of several."""


class Values(NamedTuple):
    """What the conversations of a run have under one name: by deal, the sum and the cases."""

    cases: dict[Deal, tuple[float, int]]
    is_rate: bool

    def rates(self) -> dict[Deal, tuple[int, int]]:
        """The same of truth values."""
        return {deal: (int(total), n) for deal, (total, n) in self.cases.items()}

    def clustered(self) -> ClusteredRate:
        """The rate, by deal."""
        rate = ClusteredRate()
        for total, n in self.rates().values():
            rate.add(total, n)
        return rate


def outcome_sections(runs: Sequence[Played]) -> Iterator[Section]:
    """The values of outcomes without results of their own, and the metrics."""
    summaries = {run.name: run.summary for run in runs}
    measures = [*outcome_measures(*summaries.values())]
    figures = measured_figures(measures, summaries, has_runs=len(runs) > 1)
    if found := (*figures, *filter(None, [failed_figure(runs)])):
        yield Section(id="outcomes", title="Outcomes", figures=found)


def failed_figure(runs: Sequence[Played]) -> Figure | None:
    """Each rate of outcomes with and without failed conversations; None where none failed."""
    values = values_of(run.data for run in runs)
    rates = [
        WithFailed(
            name if len(runs) == 1 else f"{name}, {run.name}",
            rate := each.clustered(),
            round(rate.n / max(1, rate.games)),
            run.count("failed"),
        )
        for run in runs
        for name, each in values[run.name].items()
        if each.is_rate and run.count("failed")
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
    found = values_of(study.runs)
    base = found[study.reference.name]
    compared = [
        (name, run, is_rate, _difference(base[name], values[name], is_paired=study.is_paired, is_rate=is_rate))
        for run, values in found.items()
        if run != study.reference.name
        for name in base
        if name in values
        for is_rate in [base[name].is_rate and values[name].is_rate]
    ]
    adjusted = with_q([difference for *_, difference in compared])
    rows = [
        _row(name, run, is_rate, one)
        for (name, run, is_rate, _), one in zip(compared, adjusted, strict=True)
        if one is not None
    ]
    figures = tuple(_figure(study, rows, is_rate=is_rate) for is_rate in (True, False) if _of(rows, is_rate))
    if figures:
        yield Section(id="value-differences", title="Values compared", figures=figures)


def _of(rows: Sequence[Mapping[str, Value]], is_rate: bool) -> list[dict[str, Value]]:
    return [dict(row) for row in rows if row["is_rate"] is is_rate]


def _figure(study: Study, rows: Sequence[Mapping[str, Value]], *, is_rate: bool) -> Figure:
    chosen, what = _of(rows, is_rate), "rates" if is_rate else "means"
    units = "pairs" if study.is_paired else "conversations"
    return Figure(
        id=f"difference-{what}",
        title=f"Which {what} of outcomes differ from the baseline's?",
        caption=f"Difference from {study.reference.name}, with 95 % interval, "
        f"{'over conversations of the same number' if study.is_paired else 'between independent conversations'}.",
        n=max(int(row["n"] or 0) for row in chosen),
        unit=units,
        columns=(
            DataColumn(name="value", title="value"),
            DataColumn(name="run", title="run"),
            DataColumn(name="n", title=units, kind="count"),
            DataColumn(name="difference", title="difference", kind="score" if is_rate else "number"),
            *interval_columns("score" if is_rate else "number"),
            DataColumn(name="p", title="p", kind="number"),
            DataColumn(name="q", title="q", kind="number"),
        ),
        rows=tuple(chosen),
        # Means have sizes of their own, so they share no axis.
        spec=_spec(study, chosen, units) if is_rate else None,
        methods=(
            Method(
                statement=_PAIRED if study.is_paired else _UNPAIRED,
                unit="conversation",
                interval="95 %",
                correction=f"Benjamini and Hochberg (q) over {len(rows)} comparisons",
            ),
        ),
        notes=() if study.is_paired else ("The runs have different seeds, so nothing is paired.",),
    )


def _spec(study: Study, rows: Sequence[Mapping[str, Value]], units: str) -> JsonObject:
    has_runs = len(study.runs) > 2
    labelled = [{**row, "label": f"{row['value']}, {row['run']}" if has_runs else row["value"]} for row in rows]
    return forest(
        labelled,
        label="label",
        value="difference",
        unit="difference",
        title="difference",
        units=units,
        clusters="n",
        reference=0.0,
    )


def _row(name: str, run: str, is_rate: bool, one: Comparison) -> dict[str, Value]:
    lo, hi = (None, None) if one.interval is None else one.interval
    found: dict[str, Value] = {"value": name, "run": run, "is_rate": is_rate, "n": one.n, "difference": one.difference}
    return {**found, "lo": lo, "hi": hi, "p": one.p, "q": one.q}


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
    for row in map(parse_row, data.read_rows()):
        if row.reason is not None:
            continue
        values: dict[str, Sequence[float]] = {}
        if isinstance(row.outcome, dict) and row.outcome.get("kind") not in results_specs():
            one = ended(row.outcome, row.agents)
            has_winners = has_winners or one.has_winners
            values = {str(key): [value] for (key,), value in CONVERSATIONS.cases(one)}
            values |= {f"{key} of agents": each for (key,), each in AGENTS.cases(one)}
        values |= {f"metric {name}": [value] for name, value in row.metrics.items() if value is not None}
        for name, each in values.items():
            _add(found, name, row.index if row.cluster is None else row.cluster, each)
    return found, has_winners


def _add(found: dict[str, Values], name: str, deal: Deal, values: Sequence[float]) -> None:
    before = found.get(name, Values({}, True))
    total, n = before.cases.get(deal, (0.0, 0))
    before.cases[deal] = (math.fsum([total, *values]), n + len(values))
    found[name] = before._replace(is_rate=before.is_rate and all(isinstance(value, bool) for value in values))


def _difference(first: Values, second: Values, *, is_paired: bool, is_rate: bool) -> Comparison | None:
    if not is_rate:
        return compare_means(first.cases, second.cases, is_paired=is_paired)
    return compare(first.rates(), second.rates()) if is_paired else compare_apart(first.clustered(), second.clustered())
