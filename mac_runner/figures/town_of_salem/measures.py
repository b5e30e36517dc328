"""What reports of games show besides the measures of summaries: measures that are counted for them alone.

Who lived how long: survival of players by faction and by role, the time to a first lie, and how long games last.

Survival is Kaplan and Meier's estimate over cases that come in games, with bands by game. Times are whole numbers, such
as days. A case that was not seen to end is censored: it was alive up to its time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Final, NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.game import GAMES
from mac_runner.environments.town_of_salem.measures import SIDE, Count, Game, default_shares
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.verdicts import opposes_town
from mac_runner.figures.charts import columns, over_time, panels
from mac_runner.figures.differences import UNITS_MIN, estimate, interval_notes, rate_columns
from mac_runner.figures.model import DataColumn, Figure, Method, RunData, Value
from mac_runner.intervals import Interval, one_cluster, student_t, wilson
from mac_runner.measures import By, Counted, Drawn, Keys, Measure, Rate, Row, Share
from mac_runner.printable import counted
from mac_runner.results import number, parsed, with_defaults
from mac_runner.types import JsonObject

READ_MAX: Final = 300
"""As many transcripts are read for what outcomes do not count; of more games every n-th is."""
_OVER_GAMES: Final = "Lines are 95 % intervals over games."
_ALL_DAYS: Final = "all days"
_BY_LOT: Final = "by lot"
_VERDICTS: Final = {"honest": Count.HONEST, "lie": Count.LIE, "unclear": Count.UNCLEAR}
_Cases: TypeAlias = Iterator[tuple[Keys, Share]]


_of_games = partial(Measure, cluster="game", unit="games", grid=lambda _keys: None)


def _wins(measure: Measure, head: str, title: str, caption: str, *more: Drawn) -> Measure:
    """Who won how often on which side; rows say how often the default act was taken."""
    name, *sides = measure.names

    def rows(summary: JsonObject) -> list[Row]:
        shares = default_shares(summary)
        word = name if sides else "faction"
        found = wins.rows(summary)
        return [row._replace(record={**row.record, "defaults": shares.get((word, *row.keys))}) for row in found]

    wins = replace(
        measure,
        place=".".join((f"won_by_{name}", *(f"{{{each}}}" for each in measure.names))),
        title=title,
        caption=f"{caption} {_OVER_GAMES}",
        value="games won",
        unit="games",
        statistic=None,
        by={"side": SIDE, name: By(head)} if sides else {"side": SIDE},
    )
    drawn = Drawn(
        id=f"wins-by-{head.rpartition(' ')[2]}",
        chart="forest",
        by=(name,),
        chapter="wins",
        label=lambda _name, row: _marked(" as ".join(row.keys), row),
        order=(*sides, name),
    )
    return replace(wins, reads=rows, figures=(drawn, *more))


def _marked(words: str, row: Row) -> str:
    return with_defaults(words, number(row.record.get("defaults")))


def _factions(game: Game) -> _Cases:
    return (((side,), Share(int(game.has_won(side, team)), 1)) for side, team in game.teams().items())


FACTIONS: Final = _wins(
    _of_games(place="{side}", cases=_factions),
    "faction",
    "How often does each faction win?",
    "Share of games that each faction won. Neutrals have won when one of them did.",
    Drawn(
        id="wins-by-run",
        chart="forest",
        by=("run", "side"),
        title="In which run does each faction win most often?",
        caption=f"Share of games that each faction won. {_OVER_GAMES}",
        chapter="compared",
        label=_marked,
        order=("side",),
    ),
)
MODELS, DEFINITIONS = (
    _wins(
        measure,
        head,
        f"Which {head} wins most often, on which side?",
        f"Share of games that a faction won in which the {head} played for it. A game counts once for each {head} and "
        "faction, however many players it had.",
    )
    for head, name in (("model", "model"), ("agent definition", "definition"))
    for measure in GAMES
    if measure.names == (name, "side")
)
"""Who won the finished games."""


def _claims(game: Game) -> _Cases:
    for seat in game.players:
        of = sum(map(seat.count, _VERDICTS.values()))
        yield from (((seat.side, verdict), Share(seat.count(count), of)) for verdict, count in _VERDICTS.items())


def _votes(game: Game) -> _Cases:
    """Votes of the Town by day: those of all players, of those of each model, and what they would be by lot."""
    for seat in game.players:
        if seat.side == Faction.TOWN:
            right, chance = (dict(seat.by_day(count)) for count in (Count.VOTE_RIGHT, Count.VOTE_CHANCE))
            for day, votes in seat.by_day(Count.VOTE):
                yield (seat.model, day), Share(right.get(day, 0), votes)
                yield (_BY_LOT, day), Share(chance.get(day, 0), 1000 * votes)


class _ByLot(Rate):
    """What thousandths of votes come to, without an interval."""

    def report(self) -> JsonObject:
        return {**super().report(), "n": self.n // 1000, "interval": None}


def _lynched(game: Game) -> _Cases:
    for seat in game.players:
        if seat.death is not None and "lynch" in seat.death and seat.died_on_day is not None:
            role = ROLES.get(seat.final_role or seat.role)
            share = Share(int(role is None or not opposes_town(role)), 1)
            yield from (((when,), share) for when in (_ALL_DAYS, seat.died_on_day))


_VERDICT: Final = By("verdict", {verdict: verdict for verdict in _VERDICTS})
_shares = partial(_of_games, value="share of claims", unit="claims")
COUNTED: Final = (
    _of_games(
        place="votes.{of}.{round}",
        cases=_votes,
        title="Do the Town's votes get better from day to day?",
        caption="Share of votes of players of the Town for someone who opposes it. The dotted line is the share that "
        "votes drawn by lot among the other living would hit. Bars are 95 % intervals over games.",
        value="votes for an opponent",
        unit="votes",
        statistic=lambda keys: _ByLot() if keys[0] == _BY_LOT else Rate(noun="games"),
        by={"of": By("model", last=_BY_LOT), "round": By("day")},
        figures=(
            Drawn(id="vote-accuracy", chart="rounds", by=("of", "round"), chapter="judgement", reference=_BY_LOT),
        ),
    ),
    _of_games(
        place="lynched.{when}",
        cases=_lynched,
        title="How many of those lynched did not oppose the Town?",
        caption="Share of lynched players who were not opponents of the Town, by the day of the lynch. Who came back "
        f"to life is not among them. {_OVER_GAMES}",
        value="lynched by mistake",
        unit="lynches",
        by={"when": By("day", {_ALL_DAYS: _ALL_DAYS})},
        figures=(
            Drawn(
                id="mislynches",
                chart="forest",
                by=("when",),
                chapter="judgement",
                label=lambda when, _row: when if when == _ALL_DAYS else f"day {when}",
            ),
        ),
    ),
    _shares(
        place="claimed.{side}.{verdict}",
        cases=_claims,
        title="How honest is each faction?",
        caption="Claims of the players of each faction: those that were honest, those that were lies, and those whose "
        "honesty is unclear.",
        by={"side": SIDE, "verdict": _VERDICT},
        figures=(Drawn(id="claims-by-faction", chart="shares", by=("side", "verdict"), chapter="lies"),),
    ),
)
"""Of finished games, from their outcomes."""
KINDS: Final = _shares(
    place="kinds.{kind}.{verdict}",
    cases=lambda claims: (
        ((kind, each), Share(int(verdict == each), 1)) for kind, verdict in claims for each in _VERDICTS
    ),
    title="What do players lie about?",
    caption="Claims of all players by what they are about: those that were honest, those that were lies, and those "
    "whose honesty is unclear.",
    by={"kind": By("kind of claim"), "verdict": _VERDICT},
    figures=(
        Drawn(
            id="claims-by-kind",
            chart="shares",
            by=("kind", "verdict"),
            chapter="lies",
            sort=lambda row: (-(number(row.record.get("n")) or 0.0), row.keys[0]),
        ),
    ),
)
"""Of the transcripts of some games."""


def games_of(data: RunData) -> Iterator[tuple[Game, int, int | str | None]]:
    """The finished games of a run, in task order, each with its number and its cluster."""
    for ended in data.ended():
        if ended.result is not None:
            game = parsed(Game, ended.result, f"the outcome of {ended.task_id} in the index")
            yield game, ended.number, ended.cluster


def side_of(role: str) -> str:
    """The faction of a role; empty for one that is not known here."""
    found = ROLES.get(role)
    return "" if found is None else found.faction


class Dealt(NamedTuple):
    """A player of a game that failed; `side` is empty where the role was not recorded."""

    definition: str
    model: str
    side: str


def failed_games(data: RunData) -> list[list[Dealt]]:
    """The players of the games of a run that failed, none where they were not recorded."""
    players: dict[str, list[Dealt]] = {ended.task_id: [] for ended in data.ended() if ended.result is None}
    for row in data.read_table("agents", lambda row: row.get("task_id") in players) if players else ():
        one = Dealt(str(row["definition"]), str(row["model"]), side_of(str(row["role"])))
        players[str(row["conversation"])].append(one)
    return [*players.values()]


def failed_with(measure: Measure, keys: Keys, games: Iterable[Sequence[Dealt]]) -> int:
    """How many of some failed games had a player of these keys of a measure of wins, or may have had one."""
    wanted = [*zip(measure.names, keys, strict=True)]

    def may_be(player: Dealt) -> bool:
        return all(getattr(player, name) in (key, "") for name, key in wanted)

    return sum(not players or any(map(may_be, players)) for players in games)


def claims_by_kind(data: RunData) -> tuple[JsonObject, str]:
    """The counts of `KINDS`, and how many games they are of where these are not all."""
    clusters = {ended.task_id: ended.cluster for ended in data.ended() if ended.result is not None}
    step = max(1, -(-len(clusters) // READ_MAX))
    chosen, counted = frozenset([*clusters][::step]), Counted([KINDS])
    table = data.read_table("claims", lambda row: row.get("task_id") in chosen)
    for game, rows in groupby(table, lambda row: str(row["conversation"])):
        with one_cluster(clusters[game]):
            counted.add([(str(row["kind"]), str(row["verdict"])) for row in rows if row["verdict"] in _VERDICTS])
    left = f"Of {len(clusters):,} games {len(chosen):,} were read, every {step}th." if step > 1 else ""
    return counted.report(), left


_BAND: Final = "log(-log) band with a variance over games, 95 %"
_WARNING: Final = "It takes players to be independent, and players of one game are not: p is too small."


class Case(NamedTuple):
    """One case of a game: how long it was seen, and whether it ended then."""

    game: int | str
    time: int
    has_ended: bool


class SurvivalPoint(NamedTuple):
    """The share of cases that were alive after `time`."""

    time: int
    at_risk: int
    ended: int
    share: float
    interval: Interval | None


def survival(cases: Iterable[Case]) -> tuple[SurvivalPoint, ...]:
    """The share alive after each time at which a case ended or was censored (E. L. Kaplan and P. Meier, 1958).

    Cases of a game end together, so the variance of its logarithm is that of sums over games (Z. Ying and L. J. Wei,
    Journal of Multivariate Analysis 50 (1994), 17-29). The band is Student's on the scale of log(-log S). Where no case
    or every case has ended, each game counts as one case of a rate. One game has no band.
    """
    cases = [*cases]
    games = {game: place for place, game in enumerate(dict.fromkeys(case.game for case in cases))}
    by_time: defaultdict[int, list[Case]] = defaultdict(list)
    for case in cases:
        by_time[case.time].append(case)
    at_risk = [0] * len(games)
    for case in cases:
        at_risk[games[case.game]] += 1
    influence = [0.0] * len(games)
    points, share = list[SurvivalPoint](), 1.0
    for time in sorted(by_time):
        ended = [0] * len(games)
        for case in by_time[time]:
            ended[games[case.game]] += case.has_ended
        risk, deaths = sum(at_risk), sum(ended)
        hazard = deaths / risk
        if hazard < 1:
            for place in range(len(games)):
                influence[place] += (ended[place] - at_risk[place] * hazard) / (risk * (1 - hazard))
        share *= 1 - hazard
        points.append(SurvivalPoint(time, risk, deaths, share, _band(share, influence)))
        for case in by_time[time]:
            at_risk[games[case.game]] -= 1
    return tuple(points)


def _band(share: float, influence: Sequence[float]) -> Interval | None:
    """The interval of a share of survivors, from what each game adds to the logarithm."""
    games = len(influence)
    if games < 2:
        return None
    if share in (0.0, 1.0):
        return wilson(share * games, games)
    variance = games / (games - 1) * math.fsum(each * each for each in influence)
    if variance == 0:
        return None
    log = math.log(share)
    reach = student_t(games - 1) * math.sqrt(variance) / abs(log)
    # Beyond this the ends are 0 and 1 to the last digit.
    reach = min(reach, 50.0)
    return Interval(math.exp(log * math.exp(reach)), math.exp(log * math.exp(-reach)))


def log_rank(first: Sequence[Case], second: Sequence[Case]) -> float | None:
    """The p of the log-rank test that two groups survive alike. It takes cases to be independent.

    None where one of them has no case, or none that ended in either.
    """
    from scipy.stats import CensoredData, logrank

    if not first or not second or not any(case.has_ended for case in (*first, *second)):
        return None
    one, other = (
        CensoredData(
            uncensored=[case.time for case in cases if case.has_ended],
            right=[case.time for case in cases if not case.has_ended],
        )
        for cases in (first, second)
    )
    found = float(logrank(one, other).pvalue)
    return None if math.isnan(found) else found


class Lives:
    """Keeps of each player how long they lived, and when they first lied; a few numbers each."""

    def __init__(self) -> None:
        self.games = 0
        self._by_side: defaultdict[str, list[Case]] = defaultdict(list)
        self._by_role: defaultdict[str, list[Case]] = defaultdict(list)
        self._lies: defaultdict[str, list[Case]] = defaultdict(list)
        self._lengths: Counter[tuple[int, str]] = Counter()

    def add(self, game: Game, cluster: int | str | None) -> None:
        """Count a finished game."""
        number = self.games if cluster is None else cluster
        self.games += 1
        won = [side for side, team in game.teams().items() if game.has_won(side, team)]
        self._lengths[game.days, " and ".join(sorted(won, key=_place)) or game.ending] += 1
        for seat in game.players:
            is_dead = not seat.alive and seat.died_on_day is not None
            last = seat.died_on_day if is_dead and seat.died_on_day is not None else game.days
            case = Case(number, last, is_dead)
            self._by_side[seat.side].append(case)
            self._by_role[seat.role].append(case)
            if game.cells:
                first = seat.count(Count.FIRST_LIE_DAY)
                self._lies[seat.side].append(Case(number, first or last, bool(first)))

    def survival(self) -> Iterator[Figure]:
        """Survival by faction and by role, and how long games lasted."""
        sides = sorted(self._by_side, key=_place)
        roles = sorted(self._by_role, key=lambda role: (_place(side_of(role)), role))
        yield self._figure(
            "survival-by-faction",
            "Which faction lives longest?",
            "Share of players dealt to each faction who were alive after a day and the night after it "
            f"({_BAND[:-6]}). A player is seen until death or the end of the game.",
            [point for side in sides for point in _curve(side, side, self._by_side[side])],
            notes=self._tests(sides, self._by_side),
        )
        yield self._figure(
            "survival-by-role",
            "Which roles live longest?",
            "Share of players dealt each role who were alive after a day and the night after it, in the colour of the "
            "faction. Bands are 95 % intervals over games.",
            [point for role in roles for point in _curve(role, side_of(role), self._by_role[role])],
            label="role",
        )
        yield self._length()

    def first_lie(self) -> Iterator[Figure]:
        """How long players of each faction go without a lie."""
        if any(case.has_ended for cases in self._lies.values() for case in cases):
            sides = sorted(self._lies, key=_place)
            yield self._figure(
                "first-lie",
                "How soon do players tell their first lie?",
                "Share of players of each faction who have lied by the end of a day, estimated as a survival curve: a "
                "player who died honest is seen until then. Bands are 95 % intervals over games.",
                [point for side in sides for point in _curve(side, side, self._lies[side], is_risen=True)],
                what="first lies",
                value="have lied",
            )

    def _figure(
        self,
        name: str,
        title: str,
        caption: str,
        rows: Sequence[dict[str, Value]],
        *,
        label: str = "faction",
        what: str = "players alive",
        value: str = "are alive",
        notes: Sequence[str] = (),
    ) -> Figure:
        title_of_axis = f"players that {value}"
        if label == "role":
            spec = panels(rows, x_title="day", title=title_of_axis)
        else:
            spec = over_time(rows, x_title="day", title=title_of_axis, is_stepped=True)
        method = Method(
            statement=f"Curves of {what} are Kaplan and Meier's (1958); the variance of their logarithm is summed over "
            "games (Ying and Wei 1994), because players of one game die together",
            unit="game",
            n=self.games,
            interval=_BAND,
        )
        return Figure(
            id=name,
            title=title,
            caption=caption,
            n=self.games,
            unit="games",
            columns=(
                DataColumn(name="x", title="day", kind="count"),
                DataColumn(name="label", title=label),
                *rate_columns(value, "rate", "players seen"),
            ),
            rows=tuple(rows),
            spec=spec,
            methods=(method,),
            notes=(*interval_notes(rows, "games"), *notes),
        )

    def _tests(self, sides: Sequence[str], cases: Mapping[str, Sequence[Case]]) -> Sequence[str]:
        if self.games < UNITS_MIN:
            return ()
        found = [(one, other, log_rank(cases[one], cases[other])) for one, other in pairwise(sides)]
        tests = [f"{one} and {other} p = {p:.2g}" for one, other, p in found if p is not None]
        return (f"Log-rank test of equal survival: {', '.join(tests)}. {_WARNING}",) if tests else ()

    def _length(self) -> Figure:
        winners = sorted({winner for _, winner in self._lengths}, key=_place)
        days = range(min(day for day, _ in self._lengths), max(day for day, _ in self._lengths) + 1)
        rows: list[dict[str, Value]] = [
            {"x": day, "part": winner, "count": self._lengths[day, winner]} for winner in winners for day in days
        ]
        every = sorted(self._lengths.elements())
        return Figure(
            id="game-length",
            title="How many days does a game last?",
            caption=f"{counted(self.games, 'games')} by the day on which they ended, and by who won them. "
            f"The median is day {every[len(every) // 2][0]}, the last day {every[-1][0]}.",
            n=self.games,
            unit="games",
            columns=(
                DataColumn(name="x", title="day", kind="count"),
                DataColumn(name="part", title="won by"),
                DataColumn(name="count", title="games", kind="count"),
            ),
            rows=tuple(row for row in rows if row["count"]),
            spec=columns(rows, x_title="last day of the game", title="games", legend="won by"),
        )


def _place(side: str) -> tuple[int, str]:
    """Where a faction stands in all figures."""
    return SIDE.place(side), side


def _curve(label: str, series: str, cases: Sequence[Case], *, is_risen: bool = False) -> Iterator[dict[str, Value]]:
    """A curve from day 0 on; with `is_risen` the share of those that have ended."""
    games = len({case.game for case in cases})
    yield estimate(label, 0.0 if is_risen else 1.0, None, len(cases), games, series)
    for point in survival(cases):
        share, band = point.share, point.interval if games >= UNITS_MIN else None
        if is_risen:
            share, band = 1 - share, None if band is None else Interval(1 - band.hi, 1 - band.lo)
        yield estimate(label, share, band, point.at_risk, games, series, point.time)
