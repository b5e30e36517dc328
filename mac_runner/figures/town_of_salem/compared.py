"""Runs of games compared with the baseline: who wins more often in each, and how differently games are played.

Two games of one deal have the same names and roles at the table. Where runs share deals they are compared deal by deal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from mac_runner.compared import CLUSTERS_MIN, RESAMPLES, Comparison, compare, compare_apart, how_paired, with_q
from mac_runner.environments.town_of_salem.measures import SIDE, Count, Game, SeatMeasure, quotient
from mac_runner.figures.charts import forest
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.estimates import UNITS_MIN
from mac_runner.figures.model import DataColumn, Figure, Method, Value, interval_columns
from mac_runner.figures.town_of_salem.measures import games_of
from mac_runner.intervals import ClusteredRate
from mac_runner.registry import results_specs
from mac_runner.results import with_defaults
from mac_runner.types import stable_hash

_Sums: TypeAlias = defaultdict[int, tuple[int, int]]
"""By deal, the sum and the cases."""


class _Played(NamedTuple):
    """What a run comes to."""

    name: str
    won: Mapping[str, _Sums]
    """By side."""
    defaults: Mapping[str, _Sums]
    measured: Mapping[str, _Sums]
    """By what the measure is called."""

    def label(self, side: str) -> str:
        """Its name, and how often this side took its default where that has to be said."""
        taken = _total(self.defaults[side])
        return with_defaults(self.name, taken.wins / taken.n if taken.n else None)


def _played(data: RunData, measures: Sequence[SeatMeasure]) -> _Played:
    found = _Played(data.name, *(defaultdict(lambda: defaultdict(lambda: (0, 0))) for _ in range(3)))
    for game, number, _ in games_of(data):
        deal = _deal(data, game, number)
        for side, team in game.teams().items():
            _add(found.won[side], deal, int(game.has_won(side, team)), 1)
        for seat in game.players:
            _add(found.defaults[seat.side], deal, seat.count(Count.DEFAULT), seat.count(Count.TURN))
            totals = seat.totals()
            for measure in measures:
                if measure.difference is not None and measure.difference[1] == seat.side:
                    _add(found.measured[measure.difference[0]], deal, *quotient(measure, totals))
    return found


def _deal(data: RunData, game: Game, number: int) -> int:
    seats = (f"{seat.agent}={seat.role}" for seat in game.players)
    return stable_hash(str(data.experiment.get("seed")), number, *seats)


def _add(sums: _Sums, deal: int, hits: int, of: int) -> None:
    if of:
        before = sums[deal]
        sums[deal] = before[0] + hits, before[1] + of


def _total(sums: _Sums) -> ClusteredRate:
    found = ClusteredRate()
    for hits, of in sums.values():
        found.add(hits, of)
    return found


def difference_figures(study: Study) -> Iterator[Figure]:
    """What differs from the baseline: wins, and the measures that say what they are called then."""
    measures = [
        measure
        for measure in results_specs()["game"].measures
        if isinstance(measure, SeatMeasure) and measure.difference is not None
    ]
    played = [_played(data, measures) for data in study.runs]
    reference = next(run for run in played if run.name == study.reference.name)
    others = [run for run in played if run is not reference]
    sides = sorted({side for run in played for side in run.won}, key=lambda side: (SIDE.place(side), side))
    called = [measure.difference[0] for measure in measures if measure.difference is not None]
    yield from _difference_figure(
        "wins-difference",
        f"Which runs change who wins, against {reference.name}?",
        "How much more often each faction won than in the baseline, in percentage points.",
        ("run", "faction"),
        [(run.label(side), side, _compared(reference.won[side], run.won[side])) for run in others for side in sides],
    )
    yield from _difference_figure(
        "skills-difference",
        f"Which runs change how the game is played, against {reference.name}?",
        "How much larger each share is than in the baseline, in percentage points.",
        ("share", "run"),
        [
            (name, run.name, _compared(reference.measured[name], run.measured[name]))
            for run in others
            for name in called
        ],
    )


def _compared(first: _Sums, second: _Sums) -> Comparison | None:
    return compare(first, second) or compare_apart(_total(first), _total(second))


def _difference_figure(
    name: str, title: str, caption: str, heads: tuple[str, str], found: Sequence[tuple[str, str, Comparison | None]]
) -> Iterator[Figure]:
    adjusted = with_q([one for *_, one in found])
    kept = [one for one in adjusted if one is not None]
    rows = [
        _row(label, series, one) for (label, series, _), one in zip(found, adjusted, strict=True) if one is not None
    ]
    if rows:
        yield Figure(
            id=name,
            title=title,
            caption=f"{caption} Lines are 95 % intervals; the dashed line is no difference.",
            n=max(one.n for one in kept),
            unit="games",
            columns=(
                DataColumn(name="label", title=heads[0]),
                DataColumn(name="series", title=heads[1]),
                DataColumn(name="value", title="difference", kind="score"),
                *interval_columns("score"),
                DataColumn(name="n", title="games", kind="count"),
                DataColumn(name="paired", title="compared"),
                DataColumn(name="p", title="p", kind="number"),
                DataColumn(name="q", title="q", kind="number"),
            ),
            rows=tuple(rows),
            spec=forest(rows, title="difference in percentage points", unit="difference", units="games", reference=0.0),
            methods=tuple(_methods([one for one in kept if one.is_paired], len(kept))),
            notes=tuple(_notes(kept)),
        )


def _row(label: str, series: str, one: Comparison) -> dict[str, Value]:
    # With a handful of games the interval says nothing.
    lo, hi = one.interval if one.interval is not None and one.n >= UNITS_MIN else (None, None)
    return {
        "label": label,
        "series": series,
        "value": one.difference,
        "lo": lo,
        "hi": hi,
        "n": one.n,
        "p": one.p,
        "q": one.q,
        "paired": "paired" if one.is_paired else "unpaired",
    }


def _methods(paired: Sequence[Comparison], comparisons: int) -> Iterator[Method]:
    correction = f"Benjamini and Hochberg (q) over {comparisons} comparisons" if comparisons > 1 else ""
    if paired:
        yield Method(
            statement="Runs that share deals (the same names and roles at the table) are compared deal by deal. "
            f"Interval and p are of one test: {how_paired('deal')}",
            unit="deal",
            n=max(one.n for one in paired),
            interval="score or bootstrap percentiles, 95 %",
            resamples=RESAMPLES,
            correction=correction,
        )
    if len(paired) < comparisons:
        yield Method(
            statement="Runs without shared deals are compared as independent samples: the interval is Newcombe's "
            "(1998, method 10) from the interval of each rate, p is that of the score test over effective cases",
            unit="game",
            interval="Newcombe's hybrid score, 95 %",
            correction=correction,
        )


def _notes(found: Iterable[Comparison]) -> Iterator[str]:
    found = [*found]
    if not all(one.is_paired for one in found):
        yield "Unpaired: these runs share no deal, so luck of the deals is part of the difference."
    if min(one.n for one in found) < CLUSTERS_MIN:
        yield f"With fewer than {CLUSTERS_MIN} games an interval of a difference may be too narrow."
