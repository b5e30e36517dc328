"""Runs of games compared: who wins how often in each, and how each differs from the baseline.

Two games of one deal have the same names and roles at the table. Where runs share deals they are compared deal by deal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from mac_runner.compared import CLUSTERS_MIN, RESAMPLES, Comparison, compare, compare_apart, how_paired, with_q
from mac_runner.environments.town_of_salem.measures import Count
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.figures.charts import forest
from mac_runner.figures.data import RunData, Study
from mac_runner.figures.estimates import UNITS_MIN, Estimate, estimate_rows, of_rate
from mac_runner.figures.failures import Counted, failures_figure
from mac_runner.figures.model import DataColumn, Figure, Method, interval_columns
from mac_runner.figures.town_of_salem.forests import rate_forest
from mac_runner.figures.town_of_salem.games import Game, Tally, games_of, in_order
from mac_runner.figures.town_of_salem.skills import quotient
from mac_runner.intervals import ClusteredRate
from mac_runner.results import DEFAULTS_NOTE, with_defaults


class _Measure(NamedTuple):
    key: str
    label: str
    side: Faction


_MEASURES: Final = (
    _Measure("vote_accuracy", "the Town's votes for an opponent", Faction.TOWN),
    _Measure("ballot_accuracy", "the Town's right verdicts", Faction.TOWN),
    _Measure("key_survival", "the Town's key roles alive at the end", Faction.TOWN),
    _Measure("night_effect", "the Town's night actions with an effect", Faction.TOWN),
    _Measure("lies", "the Mafia's claims that are lies", Faction.MAFIA),
    _Measure("lies_believed", "the Mafia's lies that a vote followed", Faction.MAFIA),
)


class _Played:
    """What a run comes to, by deal."""

    def __init__(self, data: RunData) -> None:
        self.name = data.name
        self.games = 0
        self.failed = sum(ended.outcome is None for ended in data.ended())
        self.won: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        self.defaults = Tally()
        self.measured: defaultdict[str, dict[int, tuple[int, int]]] = defaultdict(dict)
        for game in games_of(data):
            self._add(game, game.deal(data.experiment.get("seed")))

    def _add(self, game: Game, deal: int) -> None:
        self.games += 1
        for side, team in game.teams().items():
            _count(self.won[side], deal, int(game.has_won(side, team)), 1)
        self.defaults.add(((seat.side,), seat.count(Count.DEFAULT), seat.count(Count.TURN)) for seat in game.players)
        totals = [(seat.side, seat.totals()) for seat in game.players]
        for measure in _MEASURES if game.is_measured else ():
            found = [quotient(counts, measure.key) for side, counts in totals if side == measure.side]
            hits, of = (sum(part) for part in zip(*found, strict=True)) if found else (0, 0)
            if of:
                _count(self.measured[measure.key], deal, hits, of)

    def rate(self, side: str) -> ClusteredRate:
        """How often a side won."""
        found = ClusteredRate()
        for won, games in self.won.get(side, {}).values():
            found.add(won, games)
        return found

    def label(self, side: str) -> str:
        """Its name, and how often this side took its default where that has to be said."""
        return with_defaults(self.name, self.defaults.share(side))

    def measure(self, key: str) -> ClusteredRate:
        """A measure over all games."""
        found = ClusteredRate()
        for hits, of in self.measured.get(key, {}).values():
            found.add(hits, of)
        return found


def _count(sums: dict[int, tuple[int, int]], deal: int, hits: int, of: int) -> None:
    before = sums.get(deal, (0, 0))
    sums[deal] = before[0] + hits, before[1] + of


def compared_figures(study: Study) -> Iterator[Figure | None]:
    """Wins of each run, and what differs from the baseline."""
    played = [_Played(data) for data in study.runs]
    reference = next(run for run in played if run.name == study.reference.name)
    sides = in_order(side for run in played for side in run.won)
    yield rate_forest(
        "wins-by-run",
        "In which run does each faction win most often?",
        "Share of games that each faction won.",
        [of_rate(run.label(side), run.rate(side), series=side) for run in played for side in sides],
        games=sum(run.games for run in played),
        label="run",
        value="games won",
        series="faction",
        notes=(DEFAULTS_NOTE,) if any(run.label(side) != run.name for run in played for side in sides) else (),
    )
    yield failures_figure(
        [Counted(f"{side}, {run.name}", run.rate(side), 1, run.failed) for run in played for side in sides],
        name="wins-with-failed",
        title="How often does each faction win if failed games count as lost?",
        lost="lost by every faction",
        failed=sum(run.failed for run in played),
        finished=sum(run.games for run in played),
        units="games",
    )
    others = [run for run in played if run is not reference]
    wins = [((run.label(side), side), _won(reference, run, side)) for run in others for side in sides]
    yield _difference_figure(
        "wins-difference",
        f"Which runs change who wins, against {reference.name}?",
        "How much more often each faction won than in the baseline, in percentage points.",
        wins,
        group="faction",
    )
    measures = [
        ((run.name, measure.label), _measured(reference, run, measure.key)) for run in others for measure in _MEASURES
    ]
    yield _difference_figure(
        "skills-difference",
        f"Which runs change how the game is played, against {reference.name}?",
        "How much larger each share is than in the baseline, in percentage points.",
        [((label, name) if len(others) > 1 else (label, ""), one) for (name, label), one in measures],
        group="run" if len(others) > 1 else "",
    )


def _won(first: _Played, second: _Played, side: str) -> Comparison | None:
    paired = compare(first.won.get(side, {}), second.won.get(side, {}))
    return paired or compare_apart(first.rate(side), second.rate(side))


def _measured(first: _Played, second: _Played, key: str) -> Comparison | None:
    paired = compare(first.measured.get(key, {}), second.measured.get(key, {}))
    return paired or compare_apart(first.measure(key), second.measure(key))


_Named = tuple[tuple[str, str], Comparison | None]


def _difference_figure(name: str, title: str, caption: str, found: Sequence[_Named], *, group: str) -> Figure | None:
    adjusted = with_q([one for _, one in found])
    kept = [(label, one) for (label, _), one in zip(found, adjusted, strict=True) if one is not None]
    if not kept:
        return None
    estimates = [_estimate(*label, one) for label, one in kept]
    rows = [
        {**row, "p": one.p, "q": one.q, "paired": "paired" if one.is_paired else "unpaired"}
        for row, (_, one) in zip(estimate_rows(estimates), kept, strict=True)
    ]
    paired = [one for _, one in kept if one.is_paired]
    return Figure(
        id=name,
        title=title,
        caption=f"{caption} Lines are 95 % intervals; the dashed line is no difference.",
        n=max(one.n for _, one in kept),
        unit="games",
        columns=_columns(group),
        rows=tuple(rows),
        spec=forest(rows, title="difference in percentage points", unit="difference", units="games", reference=0.0),
        methods=tuple(_methods(paired, len(kept))),
        notes=tuple(_notes([one for _, one in kept])),
    )


def _estimate(label: str, series: str, one: Comparison) -> Estimate:
    # With a handful of games the interval says nothing.
    return Estimate(label, one.difference, one.interval if one.n >= UNITS_MIN else None, one.n, one.n, series)


def _columns(group: str) -> tuple[DataColumn, ...]:
    columns = (
        DataColumn(name="label", title="run" if group == "faction" else "share"),
        DataColumn(name="series", title=group),
        DataColumn(name="value", title="difference", kind="score"),
        *interval_columns("score"),
        DataColumn(name="units", title="games", kind="count"),
        DataColumn(name="paired", title="compared"),
        DataColumn(name="p", title="p", kind="number"),
        DataColumn(name="q", title="q", kind="number"),
    )
    return tuple(column for column in columns if column.title)


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


def _notes(found: Sequence[Comparison]) -> Iterator[str]:
    if not all(one.is_paired for one in found):
        yield "Unpaired: these runs share no deal, so luck of the deals is part of the difference."
    if min(one.n for one in found) < CLUSTERS_MIN:
        yield f"With fewer than {CLUSTERS_MIN} games an interval of a difference may be too narrow."
