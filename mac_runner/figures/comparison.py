"""How the values of outcomes and metrics differ between runs, for any environment without figures of its own.

Conversations of one number are pairs where all runs have one seed: they share what chance decides. Else the runs are
independent of each other, and the figure says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from mac_runner.compared import Comparison, compare, compare_apart, compare_means, how_paired, with_q
from mac_runner.figures.charts import forest
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.model import DataColumn, Figure, Method, Section, Value, interval_columns
from mac_runner.intervals import ClusteredRate
from mac_runner.registry import results_specs
from mac_runner.reports.rows import parse_row
from mac_runner.rewards import is_number, values_by_agent
from mac_runner.types import JsonObject

_PAIRED: Final = (
    "Values of two runs are compared over the conversations of the same number, which have the same seed. Interval and "
    f"p are of one test: of rates {how_paired('conversation')}; of means Student's of the paired differences"
)
_UNPAIRED: Final = (
    "The runs have different seeds, so their conversations are not pairs. The difference of two rates has Newcombe's "
    "interval with conversations as clusters, that of two means Welch's; p is of the same comparison"
)


Deal: TypeAlias = int | str
"""The number of a conversation, or the cluster of several."""


class Values(NamedTuple):
    """What the conversations of a run have under one name: by deal, the sum and the cases."""

    cases: dict[Deal, tuple[float, int]]
    is_rate: bool


def comparison_sections(study: Study) -> Iterator[Section]:
    """The differences of all values from the baseline, in one family."""
    found = {data.name: values_of(data) for data in study.runs}
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


def values_of(data: RunData) -> dict[str, Values]:
    """By name, the values of the finished conversations: of outcomes that are counted as they are, and of metrics."""
    found: dict[str, Values] = {}
    known = results_specs()
    for raw in data.read_rows():
        row = parse_row(raw)
        if row.reason is not None:
            continue
        deal = row.index if row.cluster is None else row.cluster
        outcome: JsonObject = row.outcome if isinstance(row.outcome, dict) else {}
        if outcome.get("kind") not in known:
            for name, value in outcome.items():
                if is_number(value):
                    _add(found, name, deal, [value])
            for name, values in values_by_agent(outcome, row.agents).items():
                _add(found, f"{name} of agents", deal, [*values.values()])
        for name, number in row.metrics.items():
            if number is not None:
                _add(found, f"metric {name}", deal, [number])
    return found


def _add(found: dict[str, Values], name: str, deal: Deal, values: Sequence[float]) -> None:
    is_rate = all(isinstance(value, bool) for value in values)
    before = found.get(name, Values({}, True))
    total, n = before.cases.get(deal, (0.0, 0))
    before.cases[deal] = (math.fsum([total, *values]), n + len(values))
    found[name] = before._replace(is_rate=before.is_rate and is_rate)


def _difference(first: Values, second: Values, *, is_paired: bool, is_rate: bool) -> Comparison | None:
    if is_rate:
        one, other = ({key: (int(total), n) for key, (total, n) in each.cases.items()} for each in (first, second))
        if is_paired:
            return compare(one, other)
        return compare_apart(*(clustered(each) for each in (one, other)))
    return compare_means(first.cases, second.cases, is_paired=is_paired)


def clustered(cases: Mapping[Deal, tuple[int, int]]) -> ClusteredRate:
    """Cases by conversation as a rate."""
    rate = ClusteredRate()
    for total, n in cases.values():
        rate.add(total, n)
    return rate
