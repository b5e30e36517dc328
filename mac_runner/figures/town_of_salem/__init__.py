"""The figures of Town of Salem: who wins, who lives, how well the Town judges, who lies, what nights bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from mac_runner.figures.data import RunData, Study
from mac_runner.figures.estimates import failure_notes
from mac_runner.figures.measures import measured_figures
from mac_runner.figures.model import Figure, Section
from mac_runner.figures.town_of_salem.compared import difference_figures
from mac_runner.figures.town_of_salem.lives import Lives
from mac_runner.figures.town_of_salem.measures import COUNTED, KINDS, WINS, claims_by_kind, failed_games, games_of
from mac_runner.intervals import one_cluster
from mac_runner.measures import Counted, Measure
from mac_runner.registry import results_specs
from mac_runner.results import DEFAULTS_NOTE
from mac_runner.types import JsonObject

__all__ = ["run_sections", "study_sections"]

_CHAPTERS: Final = {
    "wins": "Who wins",
    "survival": "Who lives, and how long",
    "judgement": "How well the Town judges",
    "lies": "Claims and lies",
    "nights": "Nights",
    "compared": "The runs compared",
    "": "Measures",
}


class _Read(NamedTuple):
    """What was counted of a run."""

    wins: Sequence[Measure]
    """Of who won, what there are several of."""
    measures: Sequence[Measure]
    summary: JsonObject
    lives: Lives
    finished: int
    failed: int


def _read(data: RunData) -> _Read:
    """Count the games of a run; outcomes are read once."""
    measures, lives = (*results_specs()["game"].measures, *COUNTED), Lives()
    wins, others = Counted(WINS), Counted(measures)
    for game, _, cluster in games_of(data):
        with one_cluster(cluster):
            wins.add(game)
            others.add(game)
        lives.add(game, cluster)
    failed = [*failed_games(data)]
    for game in failed:
        wins.add(game)
    faction, model, definition = WINS
    models, definitions = (len({name for _, name, _ in wins.kept[each.place]}) for each in (model, definition))
    shown = (faction, *([model] if models > 1 else []), *([definition] if definitions not in (1, models) else []))
    return _Read(shown, measures, others.report(wins.report()), lives, lives.games, len(failed))


def run_sections(data: RunData) -> Sequence[Section]:
    """The chapters of a run."""
    read = _read(data)
    if not read.finished:
        return []
    kinds, left_out = claims_by_kind(data)
    summary = {data.name: {**read.summary, **kinds}}
    chapters = {
        name: [*measured_figures((*read.measures, KINDS), summary, has_runs=False, chapter=name)] for name in _CHAPTERS
    }
    wins = measured_figures(read.wins, summary, has_runs=False, chapter="wins")
    chapters["wins"][:0] = _noted(wins, read.finished, read.failed)
    chapters["survival"] += read.lives.survival()
    chapters["lies"] = [
        replace(figure, notes=(*figure.notes, left_out)) if figure.id == "claims-by-kind" and left_out else figure
        for figure in (*chapters["lies"], *read.lives.first_lie())
    ]
    return _sections(chapters)


def _noted(figures: Iterable[Figure], finished: int, failed: int) -> Iterator[Figure]:
    """Figures of wins with what has to be said of games that failed, and of defaults."""
    for figure in figures:
        has_defaults = any("(defaults" in str(row[figure.columns[0].name]) for row in figure.rows)
        notes = (*failure_notes(failed, finished, "games"), *((DEFAULTS_NOTE,) if has_defaults else ()))
        yield replace(figure, notes=(*figure.notes, *notes))


def study_sections(study: Study) -> Sequence[Section]:
    """The chapters that compare runs."""
    read = {data.name: _read(data) for data in study.runs}
    summaries = {name: one.summary for name, one in read.items()}
    finished, failed = sum(one.finished for one in read.values()), sum(one.failed for one in read.values())
    measures = results_specs()["game"].measures
    wins = _noted(measured_figures(WINS, summaries, has_runs=True, chapter="compared"), finished, failed)
    return _sections(
        {
            "compared": [*wins, *difference_figures(study)],
            "": [*measured_figures(measures, summaries, has_runs=True)],
        }
    )


def _sections(chapters: Mapping[str, Sequence[Figure]]) -> list[Section]:
    return [
        Section(id=name or "measures", title=_CHAPTERS[name], figures=tuple(figures))
        for name, figures in chapters.items()
        if figures
    ]
