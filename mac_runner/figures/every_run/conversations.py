"""How conversations ended, and how long they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from mac_runner.figures.every_run.played import Lengths, Played, failures
from mac_runner.figures.model import (
    ColumnKind,
    DataColumn,
    Figure,
    Method,
    Value,
    interval_columns,
    number_text,
    run_column,
)
from mac_runner.figures.plots import forest, histogram
from mac_runner.intervals import ExactMean
from mac_runner.printable import counted
from mac_runner.results import integer
from mac_runner.types import JsonObject

_BARS: Final = 24
_MEAN: Final = (
    "A mean over conversations has Student's 95 % interval. Conversations are independent of each other, but for those "
    "of one deal and for forks of one conversation: they are one cluster."
)


def endings_figure(runs: Sequence[Played]) -> Figure:
    """How many conversations finished, failed by reason, and have not ended."""
    rows = [row for run in runs for row in _endings(run)]
    planned = sum(run.count("planned") for run in runs)
    return Figure(
        id="endings",
        title="How did the conversations end?",
        caption=f"{counted(planned, 'planned conversations')}. A failed one has no outcome, so it is a row of "
        "its own here and is left out of rates, unless a figure says that it counts as lost.",
        n=planned,
        unit="conversations",
        columns=(
            *run_column(len(runs) > 1),
            DataColumn(name="ending", title="ending"),
            DataColumn(name="count", title="conversations", kind="count"),
            DataColumn(name="share", title="share", kind="rate"),
            DataColumn(name="such_as", title="such as number", kind="conversations"),
        ),
        rows=tuple(rows),
    )


def _endings(run: Played) -> Iterator[dict[str, Value]]:
    planned = run.count("planned")
    ended = [("finished", run.count("finished"), "")]
    for reason in failures(run):
        ids = reason.get("task_ids")
        such = (
            ", ".join(str(each).rpartition("-")[2].lstrip("0") or "0" for each in ids) if isinstance(ids, list) else ""
        )
        ended.append((f"failed: {reason.get('reason')}", integer(reason.get("count")) or 0, such))
    if left := planned - run.count("finished") - run.count("failed"):
        ended.append(("not ended yet", left, ""))
    for ending, count, such in ended:
        share = count / planned if planned else None
        yield {"run": run.name, "ending": ending, "count": count, "share": share, "such_as": such, "slug": run.slug}


def length_figures(runs: Sequence[Played]) -> Iterator[Figure]:
    """How many replies and tokens conversations take: a histogram of one run, means of several."""
    yield from _length(runs, "turns", "How many replies does a conversation take?", "replies", lambda run: run.turns)
    yield from _length(
        runs,
        "prompt-tokens",
        "How many prompt tokens does a conversation take?",
        "tokens",
        lambda run: run.prompt_tokens,
    )
    yield from _length(
        runs,
        "completion-tokens",
        "How many tokens of replies does a conversation take?",
        "tokens",
        lambda run: run.completion_tokens,
    )


def _length(
    runs: Sequence[Played], name: str, title: str, unit: str, of: Callable[[Played], Lengths]
) -> Iterator[Figure]:
    n = sum(len(of(run).values) for run in runs)
    if n < 2 or not any(any(of(run).values) for run in runs):
        return
    if len(runs) == 1:
        values = sorted(of(runs[0]).values)
        mean, middle = sum(values) / n, median(values)
        yield Figure(
            id=name,
            title=title,
            caption=f"{n:,} ended conversations; mean {number_text(mean)}, median {number_text(middle)}, "
            f"from {number_text(values[0])} to {number_text(values[-1])} {unit}.",
            n=n,
            unit="conversations",
            columns=(
                DataColumn(name="from", title="from", kind="number", unit=unit),
                DataColumn(name="to", title="below", kind="number", unit=unit),
                DataColumn(name="count", title="conversations", kind="count"),
            ),
            rows=(rows := tuple(classes(values))),
            spec=None if values[0] == values[-1] else _histogram(rows, unit),
        )
        return
    rows = tuple(_mean_row(run, of(run).mean) for run in runs if of(run).mean.n)
    yield Figure(
        id=name,
        title=title,
        caption=f"Mean over the ended conversations of each run, {n:,} in all, with 95 % interval.",
        n=n,
        unit="conversations",
        columns=mean_columns("run", unit),
        rows=rows,
        spec=forest(
            rows, label="run", value="mean", unit="number", title=f"{unit} per conversation", units="conversations"
        ),
        methods=(Method(statement=_MEAN, unit="conversation", interval="Student's t, 95 %"),),
    )


def _histogram(rows: Sequence[Mapping[str, Value]], unit: str) -> JsonObject:
    return histogram(rows, lo="from", hi="to", count="count", title=unit, counted="conversations")


def mean_columns(label: str, unit: str, *, kind: ColumnKind = "number") -> tuple[DataColumn, ...]:
    """The columns of means with intervals."""
    return (
        DataColumn(name=label, title=label),
        DataColumn(name="n", title="n", kind="count"),
        DataColumn(name="mean", title="mean", kind=kind, unit=unit),
        *interval_columns(kind),
    )


def _mean_row(run: Played, mean: ExactMean) -> dict[str, Value]:
    """A mean of counts, which are never below 0, and nor is its interval."""
    interval = mean.interval
    return {
        "run": run.name,
        "n": mean.n,
        "mean": mean.mean,
        "lo": None if interval is None else max(0.0, interval.lo),
        "hi": None if interval is None else interval.hi,
    }


def classes(values: Sequence[float], bars: int = _BARS) -> Iterator[dict[str, Value]]:
    """Counts of classes of equal width over sorted values; whole numbers have whole classes."""
    least, most = values[0], values[-1]
    is_whole = all(value == int(value) for value in values)
    width = (most - least + (1 if is_whole else 0)) / bars
    if is_whole:
        width = max(1.0, float(-(-int(most - least + 1) // bars)))
    if width == 0:
        yield {"from": least, "to": most, "count": len(values)}
        return
    counts = [0] * (int((most - least) / width) + 1)
    for value in values:
        counts[int((value - least) / width)] += 1
    for place, count in enumerate(counts):
        yield {"from": least + place * width, "to": least + (place + 1) * width, "count": count}
