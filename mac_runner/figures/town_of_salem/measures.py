"""What reports of games show besides the measures of summaries: measures that are counted for them alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from mac_runner.environments.town_of_salem.game import GAMES
from mac_runner.environments.town_of_salem.measures import SIDE, Count, Game, default_shares
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
        found = counted.rows(summary)
        return [row._replace(record={**row.record, "defaults": shares.get((word, *row.keys))}) for row in found]

    counted = replace(
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
    return replace(counted, reads=rows, figures=(drawn, *more))


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
