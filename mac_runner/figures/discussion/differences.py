"""How combinations differ from the baseline, over the questions that both discussed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from mac_runner import paired
from mac_runner.comparisons import RESAMPLES
from mac_runner.environments.discussion.results.comparison_tables import grid_differences
from mac_runner.environments.discussion.results.comparisons import COMPARED, compare_discussions
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.model import DataColumn, Figure, Method, Value
from mac_runner.figures.plots import forest
from mac_runner.results import Declared, Difference, PlayedCombination
from mac_runner.types import JsonObject

_WORDS: Final = {
    "accuracy.first": "right first answers",
    "accuracy.final": "right last answers",
    "accuracy.group": "right answers of the group",
    "consensus": "discussions in consensus",
    "changes": "changed answers",
    "followed": "answers taken over",
    **{
        f"bias.{kind}.{context}": f"bias of {words} in {context} contexts"
        for kind, words in (("first", "first answers"), ("final", "last answers"), ("group", "the group"))
        for context in ("ambiguous", "disambiguated")
    },
}
_STATEMENT: Final = (
    "Differences from the baseline are paired by question, or by number where all discussions are of one question. "
    "Intervals are percentiles of a bootstrap that draws whole questions; p is McNemar's exact test for one truth "
    "value for each pair, else twice the share of resamples on the other side of no difference"
)


def difference_figures(study: Study) -> tuple[Figure, ...]:
    """One figure for each outcome, the primary first."""
    baseline = study.reference.name
    played = [_played(data) for data in study.runs]
    compared = compare_discussions(played, True, Declared(baseline, study.primary))
    found = grid_differences(compared)
    order = sorted(found, key=lambda name: (name != study.primary, [*COMPARED].index(name)))
    return tuple(_figures(order, found, study))


def _played(data: RunData) -> PlayedCombination:
    def outcomes() -> Iterator[tuple[int, JsonObject, str]]:
        for ended in data.ended():
            if ended.outcome is not None:
                yield ended.number, ended.outcome, f"the index row of {ended.task_id!r}, outcome"

    return PlayedCombination(data.name, dict(data.values), data.planned, outcomes())


def _figures(order: Sequence[str], found: dict[str, dict[str, Difference]], study: Study) -> Iterator[Figure]:
    for name in order:
        rows = [_row(run, one) for run, one in found[name].items() if one.diff is not None]
        if not rows:
            continue
        is_rate = COMPARED[name] == "share"
        is_primary = name == study.primary
        n = max(int(row["n"] or 0) for row in rows)
        notes = []
        if (fewest := min(int(row["n"] or 0) for row in rows)) < paired.CLUSTERS_MIN:
            notes.append(
                f"Some have {fewest} questions only: with fewer than {paired.CLUSTERS_MIN}, intervals are too narrow."
            )
        yield Figure(
            id=f"difference-{name.replace('.', '-')}",
            title=f"Which runs have more or fewer {_WORDS[name]} than the baseline?"
            if is_rate
            else f"In which runs is the {_WORDS[name]} another than the baseline's?",
            caption=f"Difference from {study.reference.name}, with 95 % interval, over the questions that both "
            "discussed.",
            n=n,
            unit="questions",
            columns=_columns(is_rate=is_rate),
            rows=tuple(rows),
            spec=forest(
                rows,
                label="run",
                value="difference",
                unit="difference" if is_rate else "number",
                title="difference in percentage points" if is_rate else "difference of scores",
                units="questions",
                reference=0.0,
            ),
            methods=(_method(len(rows)),),
            notes=tuple(notes),
            is_primary=is_primary,
        )


def _method(rows: int) -> Method:
    return Method(
        statement=_STATEMENT,
        unit="question",
        interval="bootstrap percentiles, 95 %",
        resamples=RESAMPLES,
        correction=f"Benjamini and Hochberg (q) over the {rows} runs of one figure" if rows > 1 else "",
    )


def _row(run: str, one: Difference) -> dict[str, Value]:
    return {
        "run": run,
        "n": one.n,
        "difference": one.diff,
        "lo": one.diff_lo,
        "hi": one.diff_hi,
        "p": one.p,
        "q": one.q,
        "h": one.h,
        "odds": one.odds,
        "odds_lo": one.odds_lo,
        "odds_hi": one.odds_hi,
    }


def _columns(*, is_rate: bool) -> tuple[DataColumn, ...]:
    proportions = (
        DataColumn(name="h", title="Cohen's h", kind="number"),
        DataColumn(name="odds", title="odds ratio", kind="number"),
        DataColumn(name="odds_lo", title="95 % from", kind="number"),
        DataColumn(name="odds_hi", title="to", kind="number"),
    )
    return (
        DataColumn(name="run", title="run"),
        DataColumn(name="n", title="questions", kind="count"),
        DataColumn(name="difference", title="difference", kind="score"),
        DataColumn(name="lo", title="95 % from", kind="score"),
        DataColumn(name="hi", title="to", kind="score"),
        DataColumn(name="p", title="p", kind="number"),
        DataColumn(name="q", title="q", kind="number"),
        *(proportions if is_rate else ()),
    )
