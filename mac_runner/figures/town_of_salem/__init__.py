"""The figures of Town of Salem: who wins, who lives, how well the Town judges, who lies, what nights bring."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from mac_runner.environments.town_of_salem.measures import SIDE, Count, SeatMeasure, quotient
from mac_runner.figures.differences import (
    Values,
    WithFailed,
    difference_figure,
    differences,
    failure_notes,
    failures_figure,
)
from mac_runner.figures.measures import measured_figures
from mac_runner.figures.model import Figure, RunData, Section, Study
from mac_runner.figures.town_of_salem.measures import (
    COUNTED,
    DEFINITIONS,
    FACTIONS,
    KINDS,
    MODELS,
    Dealt,
    Lives,
    claims_by_kind,
    failed_games,
    failed_with,
    games_of,
)
from mac_runner.intervals import one_cluster
from mac_runner.measures import Counted, Measure
from mac_runner.printable import counted
from mac_runner.registry import results_specs
from mac_runner.results import DEFAULTS_NOTE

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
_DEFAULTS = "turns that ended with the default act, of {side}"


class _Read(NamedTuple):
    """What was counted of a run."""

    wins: Sequence[Measure]
    """Of who won, what there are several of."""
    measures: Sequence[Measure]
    counted: Counted
    lives: Lives
    failed: Sequence[Sequence[Dealt]]
    """The players of each failed game."""


def _read(data: RunData) -> _Read:
    """Count the games of a run; outcomes are read once."""
    measures, lives = (*results_specs()["game"].measures, *COUNTED), Lives()
    counted = Counted((FACTIONS, MODELS, DEFINITIONS, *measures))
    for game, _, cluster in games_of(data):
        with one_cluster(cluster):
            counted.add(game)
        lives.add(game, cluster)
    models, definitions = (len({name for name, _ in counted.kept[each.place]}) for each in (MODELS, DEFINITIONS))
    shown = ((FACTIONS, True), (MODELS, models > 1), (DEFINITIONS, definitions not in (1, models)))
    wins = [measure for measure, is_shown in shown if is_shown]
    return _Read(wins, measures, counted, lives, failed_games(data))


def run_sections(data: RunData) -> Sequence[Section]:
    """The chapters of a run."""
    read = _read(data)
    if not read.lives.games:
        return []
    kinds, left_out = claims_by_kind(data)
    summary = {data.name: {**read.counted.report(), **kinds}}
    chapters = {
        name: [*measured_figures((*read.measures, KINDS), summary, has_runs=False, chapter=name)] for name in _CHAPTERS
    }
    wins = measured_figures(read.wins, summary, has_runs=False, chapter="wins")
    chapters["wins"] = [*_with_failed(wins, {data.name: read}), *chapters["wins"]]
    chapters["survival"] += read.lives.survival()
    chapters["lies"] = [
        replace(figure, notes=(*figure.notes, left_out)) if figure.id == "claims-by-kind" and left_out else figure
        for figure in (*chapters["lies"], *read.lives.first_lie())
    ]
    return _sections(chapters)


def _with_failed(figures: Iterable[Figure], read: Mapping[str, _Read]) -> Iterator[Figure]:
    """Figures of wins with what has to be said of defaults and of failed games, and one with these counted as lost."""
    finished = sum(one.lives.games for one in read.values())
    failed = [players for one in read.values() for players in one.failed]
    for figure in figures:
        has_defaults = any("(defaults" in str(row[figure.columns[0].name]) for row in figure.rows)
        notes = (*failure_notes(len(failed), finished, "games"), *((DEFAULTS_NOTE,) if has_defaults else ()))
        yield replace(figure, notes=(*figure.notes, *notes))
    lost = failures_figure(
        [
            WithFailed(
                " as ".join(map(str, keys)), name, wins[keys].clustered(), failed_with(measure, keys, one.failed)
            )
            for name, one in read.items()
            for measure in (one.wins if len(read) == 1 else (FACTIONS,))
            for wins in (one.counted.kept[measure.place],)
            for keys in sorted(wins, key=measure.place_of)
        ],
        name="wins-with-failed",
        title="How often does each side win if failed games count as lost?",
        lost="lost by all who played in it",
        failed=len(failed),
        finished=finished,
        units="games",
    )
    if lost is not None:
        unknown = sum(not players or any(not one.side for one in players) for players in failed)
        note = f"Not all roles of {unknown:,} failed games are recorded: all who may have played count as having lost."
        yield replace(lost, notes=(*lost.notes, *((note,) if unknown else ())))


def study_sections(study: Study) -> Sequence[Section]:
    """The chapters that compare runs."""
    read = {data.name: _read(data) for data in study.runs}
    summaries = {name: one.counted.report() for name, one in read.items()}
    wins = _with_failed(measured_figures([FACTIONS], summaries, has_runs=True, chapter="compared"), read)
    measures = results_specs()["game"].measures
    return _sections(
        {
            "compared": [*wins, *difference_figures(study)],
            "": [*measured_figures(measures, summaries, has_runs=True)],
        }
    )


def _values_of(data: RunData, measures: Mapping[str, SeatMeasure]) -> dict[str, Values]:
    """By deal the wins of each side, what measures are called, and the turns of each side that were defaults."""
    found: defaultdict[str, Values] = defaultdict(lambda: Values({}))
    for game, number, _ in games_of(data):
        deal = game.deal(str(data.experiment.get("seed")), number)
        for side, team in game.teams().items():
            found[side].add(deal, int(game.has_won(side, team)), 1)
        for seat in game.players:
            found[_DEFAULTS.format(side=seat.side)].add(deal, seat.count(Count.DEFAULT), seat.count(Count.TURN))
            totals = seat.totals()
            for name, measure in measures.items():
                if measure.difference == (name, seat.side):
                    found[name].add(deal, *quotient(measure, totals))
    return found


def difference_figures(study: Study) -> Iterator[Figure]:
    """What differs from the baseline: wins, and the measures that say what they are called then."""
    measures = {
        measure.difference[0]: measure
        for measure in results_specs()["game"].measures
        if isinstance(measure, SeatMeasure) and measure.difference is not None
    }
    baseline, values = study.reference.name, {data.name: _values_of(data, measures) for data in study.runs}
    sides = sorted(SIDE.words, key=SIDE.place)

    def defaults(run: str, side: str) -> float | None:
        taken = values[run].get(_DEFAULTS.format(side=side), Values({})).clustered()
        return taken.wins / taken.n if taken.n else None

    wins = differences(values, baseline, sides, defaults)
    skills = differences(values, baseline, [*measures])
    draw = partial(difference_figure, cluster="deal")
    yield from draw(
        wins,
        name="wins-difference",
        title=f"Which runs change who wins, against {baseline}?",
        caption="How much more often each faction won than in the baseline, in percentage points.",
        by=["run", "outcome"],
        family=counted(len(wins), "comparisons"),
    )
    yield from draw(
        skills,
        name="skills-difference",
        title=f"Which runs change how the game is played, against {baseline}?",
        caption="How much larger each share is than in the baseline, in percentage points.",
        by=["outcome", "run"],
        family=counted(len(skills), "comparisons"),
    )


def _sections(chapters: Mapping[str, Sequence[Figure]]) -> list[Section]:
    return [
        Section(id=name or "measures", title=_CHAPTERS[name], figures=tuple(figures))
        for name, figures in chapters.items()
        if figures
    ]
