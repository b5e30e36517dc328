"""What reports of games show besides the measures of summaries: measures that are counted for them alone.

A game that failed is one that everybody lost, for the rates that count such games.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from msgspec import UNSET, UnsetType

from mac_runner.environments.town_of_salem.measures import SIDE, Count, Game, Seat
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.verdicts import opposes_town
from mac_runner.figures.data import RunData
from mac_runner.intervals import one_cluster
from mac_runner.measures import By, Counted, Drawn, Keys, Measure, Rate, Row, Share
from mac_runner.results import number, parsed, with_defaults
from mac_runner.types import JsonObject

READ_MAX: Final = 300
"""As many transcripts are read for what outcomes do not count; of more games every n-th is."""
FAILED: Final = "failed"
"""The ending of a game that failed."""
_FINISHED: Final = "finished games"
_LOST: Final = "failed games counted as lost"
_OVER_GAMES: Final = "Lines are 95 % intervals over games."
_ALL_DAYS: Final = "all days"
_BY_LOT: Final = "by lot"
_VERDICTS: Final = {"honest": Count.HONEST, "lie": Count.LIE, "unclear": Count.UNCLEAR}
_Cases: TypeAlias = Iterator[tuple[Keys, Share]]


class _Played(NamedTuple):
    """What one game was for those who played a side."""

    won: Share
    defaults: Share
    """How many of their turns ended with the default act."""
    has_failed: bool


class _Won:
    """How often games were won; with those that failed only where there is one."""

    def __init__(self, *, with_failed: bool) -> None:
        self._won, self._defaults = Rate(noun="games"), Share(0, 0)
        self._is_shown = not with_failed

    def add(self, counts: _Played, question: str | None) -> None:
        self._won.add(counts.won, question)
        self._defaults += counts.defaults
        self._is_shown = self._is_shown or counts.has_failed

    def report(self) -> JsonObject | UnsetType:
        taken = self._defaults
        share = taken.count / taken.cases if taken.cases else None
        return {**self._won.report(), "defaults": share} if self._is_shown else UNSET


_of_games = partial(Measure, cluster="game", unit="games", grid=lambda _keys: None)


def _marked(words: str, row: Row) -> str:
    """With how often the default act was taken, where that has to be said."""
    return with_defaults(words, number(row.record.get("defaults")))


def _wins(group: str, head: str, title: str, caption: str, name_of: Callable[[Seat], str], *more: Drawn) -> Measure:
    """Who won how often on which side."""

    def cases(game: Game) -> Iterator[tuple[Keys, _Played]]:
        has_failed = game.ending == FAILED
        for side in {seat.side for seat in game.players} - {""}:
            for name in {name_of(seat) for seat in game.players if seat.side == side}:
                seats = [seat for seat in game.players if seat.side == side and name_of(seat) == name]
                defaults, turns = (sum(seat.count(count) for seat in seats) for count in (Count.DEFAULT, Count.TURN))
                played = _Played(Share(int(game.has_won(side, seats)), 1), Share(defaults, turns), has_failed)
                for counting in (_LOST,) if has_failed else (_FINISHED, _LOST):
                    yield (side, name, counting), played

    return _of_games(
        place=f"won_by_{group}.{{side}}.{{name}}.{{counting}}",
        cases=cases,
        title=title,
        caption=f"{caption} {_OVER_GAMES}",
        value="games won",
        statistic=lambda keys: _Won(with_failed=keys[-1] == _LOST),
        by={"side": SIDE, "name": By(head), "counting": By("counting", {_FINISHED: _FINISHED, _LOST: _LOST})},
        figures=(
            Drawn(
                id=f"wins-by-{group}",
                chart="forest",
                by=("name", "counting"),
                chapter="wins",
                label=lambda name, row: _marked(f"{name} as {row.keys[0]}" if name else row.keys[0], row),
                order=("side", "name", "counting"),
            ),
            *more,
        ),
    )


WINS: Final = (
    _wins(
        *("faction", "faction", "How often does each faction win?"),
        "Share of games that each faction won. Neutrals have won when one of them did.",
        lambda _seat: "",
        *(
            Drawn(
                id=name,
                chart="forest",
                by=("run", "side"),
                title=title,
                caption=f"Share of games that each faction won{how}. {_OVER_GAMES}",
                chapter="compared",
                label=_marked,
                order=("side",),
                only=lambda keys, counting=counting: keys[2] == counting,  # type: ignore[misc]
            )
            for name, counting, title, how in (
                ("wins-by-run", _FINISHED, "In which run does each faction win most often?", ""),
                (
                    *("wins-with-failed", _LOST, "How often does each faction win if failed games count as lost?"),
                    ", of the finished and the failed ones",
                ),
            )
        ),
    ),
    *(
        _wins(
            *(group, head, f"Which {head} wins most often, on which side?"),
            f"Share of games that a faction won in which the {head} played for it. A game counts once for each {head} "
            "and faction, however many players it had.",
            name_of,
        )
        for group, head, name_of in (
            ("model", "model", lambda seat: seat.model),
            ("definition", "agent definition", lambda seat: seat.definition),
        )
    ),
)
"""Who won; failed games are counted too."""


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
        if ended.outcome is not None:
            game = parsed(Game, ended.outcome, f"the outcome of {ended.task_id} in the index")
            yield game, ended.number, ended.cluster


def failed_games(data: RunData) -> Iterator[Game]:
    """The games of a run that failed. The role of a player is empty where it was not recorded."""
    failed = {ended.task_id for ended in data.ended() if ended.outcome is None}
    rows = data.read_table("agents", lambda row: row.get("task_id") in failed) if failed else iter(())
    seats: dict[str, list[Seat]] = {}
    for row in rows:
        role = row.get("role")
        seat = Seat(
            agent=str(row["agent"]),
            definition=str(row["definition"]),
            model=str(row["model"]),
            role=role if isinstance(role, str) else "",
            faction="",
            won=False,
            alive=False,
            death=None,
            died_on_day=None,
            measures={},
        )
        seats.setdefault(str(row["conversation"]), []).append(seat)
    yield from (Game(FAILED, 0, frozenset(), tuple(players)) for players in seats.values())


def claims_by_kind(data: RunData) -> tuple[JsonObject, str]:
    """The counts of `KINDS`, and how many games they are of where these are not all."""
    clusters = {ended.task_id: ended.cluster for ended in data.ended() if ended.outcome is not None}
    step = max(1, -(-len(clusters) // READ_MAX))
    chosen, counted = frozenset([*clusters][::step]), Counted([KINDS])
    table = data.read_table("claims", lambda row: row.get("task_id") in chosen)
    for game, rows in groupby(table, lambda row: str(row["conversation"])):
        with one_cluster(clusters[game]):
            counted.add([(str(row["kind"]), str(row["verdict"])) for row in rows if row["verdict"] in _VERDICTS])
    left = f"Of {len(clusters):,} games {len(chosen):,} were read, every {step}th." if step > 1 else ""
    return counted.report(), left
