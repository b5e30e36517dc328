"""How combinations differ from the baseline, over the questions that both discussed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mac_runner.compared import CLUSTERS_MIN, RESAMPLES, how_paired
from mac_runner.environments.discussion.comparisons import COMPARED, compare_discussions, grid_differences, paired_of
from mac_runner.environments.discussion.measures import MEASURES
from mac_runner.figures.charts import forest
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.model import DataColumn, Figure, Method, Value, interval_columns
from mac_runner.printable import counted
from mac_runner.results import Declared, Difference, PlayedCombination
from mac_runner.types import JsonObject

_WORDS: Final = {
    shown.name: shown.words
    for measure in MEASURES
    for keys in measure.compared
    if (shown := measure.in_grid(keys)) is not None
}
_STATEMENT: Final = (
    "Differences from the baseline are paired by question, or by number where all discussions are of one question. "
    f"Interval and p are of one test: {how_paired('question')}"
)


def difference_figures(study: Study) -> tuple[Figure, ...]:
    """One figure for each outcome, the primary first."""
    baseline = study.reference.name
    played = [_played(data) for data in study.runs]
    compared = compare_discussions(played, True, Declared(baseline, study.primary))
    found = grid_differences(compared)
    order = sorted(found, key=lambda name: (name != study.primary, [*COMPARED].index(name)))
    rows = {name: [_row(name, run, one) for run, one in found[name].items() if one.diff is not None] for name in order}
    paired = paired_of(compared)
    families = f"Benjamini and Hochberg (q) over the {paired.families_in_words() if paired else 0}"
    if len(study.runs) == 2:
        return tuple(_of_two(rows, study, families))
    return tuple(_figures(rows, study, families))


def _of_two(rows: Mapping[str, Sequence[dict[str, Value]]], study: Study, correction: str) -> Iterator[Figure]:
    """Of two runs one figure for all rates, and one for all scores."""
    other = next(run.name for run in study.runs if run.name != study.reference.name)
    for is_rate, what in ((True, "rates"), (False, "bias scores")):
        found = [row for name, each in rows.items() if (COMPARED[name] == "share") is is_rate for row in each]
        if found:
            yield Figure(
                id=f"difference-{what.replace(' ', '-')}",
                title=f"In which {what} does {other} differ from {study.reference.name}?",
                caption=f"{other} less {study.reference.name}, with 95 % interval, over the questions that both "
                "discussed.",
                n=max(int(row["n"] or 0) for row in found),
                unit="questions",
                columns=_columns("outcome", is_rate=is_rate),
                rows=tuple(found),
                spec=_spec(found, "outcome", is_rate=is_rate),
                methods=(_method(correction),),
                notes=_notes(found),
            )


def _played(data: RunData) -> PlayedCombination:
    def outcomes() -> Iterator[tuple[int, JsonObject, str]]:
        for ended in data.ended():
            if ended.outcome is not None:
                yield ended.number, ended.outcome, f"the index row of {ended.task_id!r}, outcome"

    return PlayedCombination(data.name, dict(data.values), data.planned, outcomes())


def _figures(rows: Mapping[str, Sequence[dict[str, Value]]], study: Study, correction: str) -> Iterator[Figure]:
    """Of several runs a figure for each outcome."""
    for name, found in rows.items():
        if not found:
            continue
        is_rate = COMPARED[name] == "share"
        yield Figure(
            id=f"difference-{name.replace('.', '-')}",
            title=f"Which runs have more or fewer {_WORDS[name]} than the baseline?"
            if is_rate
            else f"In which runs does the {_WORDS[name]} differ from the baseline's?",
            caption=f"Difference from {study.reference.name}, with 95 % interval, over the questions that both "
            "discussed.",
            n=max(int(row["n"] or 0) for row in found),
            unit="questions",
            columns=_columns("run", is_rate=is_rate),
            rows=tuple(found),
            spec=_spec(found, "run", is_rate=is_rate),
            methods=(_method(correction),),
            notes=_notes(found),
            is_primary=name == study.primary,
        )


def _spec(rows: Sequence[dict[str, Value]], label: str, *, is_rate: bool) -> JsonObject:
    return forest(
        rows,
        label=label,
        value="difference",
        unit="difference" if is_rate else "score",
        title="difference in percentage points" if is_rate else "difference of scores",
        units="questions",
        clusters="n",
        reference=0.0,
    )


def _notes(rows: Sequence[dict[str, Value]]) -> tuple[str, ...]:
    fewest = min(int(row["n"] or 0) for row in rows)
    if fewest >= CLUSTERS_MIN:
        return ()
    few = counted(fewest, "questions")
    return (f"Some have {few} only: with fewer than {CLUSTERS_MIN}, intervals are too narrow.",)


def _method(correction: str) -> Method:
    return Method(
        statement=_STATEMENT,
        unit="question",
        interval="score or bootstrap percentiles, 95 %",
        resamples=RESAMPLES,
        correction=correction,
    )


def _row(name: str, run: str, one: Difference) -> dict[str, Value]:
    return {
        "outcome": _WORDS[name],
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


def _columns(label: str, *, is_rate: bool) -> tuple[DataColumn, ...]:
    proportions = (
        DataColumn(name="h", title="Cohen's h", kind="number"),
        DataColumn(name="odds", title="odds ratio", kind="number"),
        *interval_columns("number", "odds_"),
    )
    return (
        DataColumn(name=label, title=label),
        DataColumn(name="n", title="questions", kind="count"),
        DataColumn(name="difference", title="difference", kind="score"),
        *interval_columns("score"),
        DataColumn(name="p", title="p", kind="number"),
        DataColumn(name="q", title="q", kind="number"),
        *(proportions if is_rate else ()),
    )
