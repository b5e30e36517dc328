"""Runs of games compared with the baseline: who wins more often in each, and how differently games are played.

Two games of one deal have the same names and roles at the table. Where runs share deals they are compared deal by deal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from mac_runner.environments.town_of_salem.measures import SIDE, Count, SeatMeasure, quotient
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.differences import Values, difference_figure, differences
from mac_runner.figures.model import Figure
from mac_runner.figures.town_of_salem.measures import games_of
from mac_runner.printable import counted
from mac_runner.registry import results_specs

_DEFAULTS = "turns that ended with the default act, of {side}"


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
