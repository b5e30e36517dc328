"""Replies that could not be used: corrected, or replaced by the default act, by cause and model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from mac_runner.config import recorded_speakers
from mac_runner.figures.every_run.played import Played
from mac_runner.figures.model import DataColumn, Figure, Value, run_column
from mac_runner.figures.plots import bars
from mac_runner.reports.usability import noted_defaults
from mac_runner.results import DEFAULTS_NOTE, integer, section
from mac_runner.types import JsonObject


def usability_figures(runs: Sequence[Played]) -> tuple[Figure, ...]:
    """Which replies could not be used, and how many led to a correction or a default act."""
    turns = sum(_total(run, "turns") for run in runs)
    if not turns:
        return ()
    corrections, defaults = (sum(_total(run, key) for run in runs) for key in ("corrections", "defaults"))
    counts: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        speakers = recorded_speakers(run.data.experiment)
        unusable = section(run.summary, "unusable")
        for definition in unusable:
            model = speakers.get(definition, definition)
            for cause, count in section(unusable, definition).items():
                counts[run.name, model, cause] += integer(count) or 0
    caption = (
        f"{turns:,} replies of ended conversations. {corrections:,} could not be used and were sent back to be "
        f"corrected; {defaults:,} could not be used after that either, and the default act was taken."
    )
    rows = tuple(_row(run, model, cause, count, turns) for (run, model, cause), count in counts.most_common())
    return (
        Figure(
            id="unusable",
            title="Which replies could not be used, and why?",
            caption=caption,
            n=turns,
            unit="replies",
            columns=(
                *run_column(len(runs) > 1),
                DataColumn(name="model", title="model"),
                DataColumn(name="cause", title="cause"),
                DataColumn(name="count", title="replies", kind="count"),
                DataColumn(name="per_1000", title="per 1,000 replies", kind="number"),
            ),
            rows=rows,
            spec=_chart(rows, is_grid=len(runs) > 1),
            notes=(*_notes(runs),) if rows else ("Every reply could be used.",),
        ),
    )


def _notes(runs: Sequence[Played]) -> Iterator[str]:
    for run in runs:
        if noted := noted_defaults(run.summary):
            yield f"{f'{run.name}: ' if len(runs) > 1 else ''}the default was often taken by {noted}."
            yield DEFAULTS_NOTE


def _chart(rows: Sequence[Mapping[str, Value]], *, is_grid: bool) -> JsonObject | None:
    if not rows:
        return None
    causes = Counter[tuple[str, str]]()
    for row in rows:
        count = row["count"]
        causes[str(row["cause"]), str(row["run" if is_grid else "model"])] += (
            int(count) if isinstance(count, int) else 0
        )
    values: list[dict[str, Value]] = [
        {"cause": cause, "group": group, "count": count} for (cause, group), count in causes.most_common()
    ]
    title = "replies that could not be used"
    return bars(values, label="cause", value="count", title=title, group="group")


def _row(run: str, model: str, cause: str, count: int, turns: int) -> dict[str, Value]:
    return {"run": run, "model": model, "cause": cause, "count": count, "per_1000": 1000 * count / turns}


def _total(run: Played, key: str) -> int:
    return integer(run.summary.get(key)) or 0
