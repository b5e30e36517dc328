"""How well players do what their side needs: votes, lynches, lies and night actions, from the counts of outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from mac_runner.environments.town_of_salem.measures import MEASURES, Count
from mac_runner.environments.town_of_salem.measures import quotient as quotient_of
from mac_runner.environments.town_of_salem.model.state import Faction
from mac_runner.environments.town_of_salem.roles import ROLES
from mac_runner.environments.town_of_salem.verdicts import opposes_town
from mac_runner.figures.charts import over_time, shares
from mac_runner.figures.estimates import (
    Estimate,
    estimate_columns,
    estimate_rows,
    interval_notes,
    of_rate,
    rate_method,
)
from mac_runner.figures.model import DataColumn, Figure, Value, interval_columns
from mac_runner.figures.town_of_salem.forests import rate_forest, role_estimates
from mac_runner.figures.town_of_salem.games import Game, Key, Seat, Tally, in_order
from mac_runner.intervals import ClusteredRate
from mac_runner.printable import counted

_RATES: Final = {measure.key: measure for measure in MEASURES if measure.kind == "rate"}
_VERDICTS: Final = (("honest", Count.HONEST), ("lie", Count.LIE), ("unclear", Count.UNCLEAR))


class _Skill(NamedTuple):
    """A measure that figures show: its key among MEASURES, and whose seats are counted."""

    key: str
    label: str
    side: Faction | None = None


_JUDGEMENTS: Final = (
    _Skill("vote_accuracy", "votes for an opponent", Faction.TOWN),
    _Skill("decisive_votes_right", "decisive votes for one", Faction.TOWN),
    _Skill("ballot_accuracy", "right verdicts", Faction.TOWN),
    _Skill("decisive_ballots_right", "right decisive verdicts", Faction.TOWN),
    _Skill("accusations_right", "accusations of an opponent", Faction.TOWN),
    _Skill("key_survival", "key roles alive at the end", Faction.TOWN),
)
_LIES: Final = (
    _Skill("lies", "claims that are lies"),
    _Skill("lies_unaccused", "lies before being accused"),
    _Skill("lies_believed", "lies that a vote followed"),
    _Skill("lies_contradicted", "lies contradicted later"),
)


class Skills:
    """Adds up the counts of outcomes, game by game."""

    def __init__(self) -> None:
        self._games = 0
        self._models: set[str] = set()
        self._tally = Tally()
        self._chance: dict[Key, int] = {}

    def add(self, game: Game) -> None:
        """Count a finished game; one of an earlier version has no counts."""
        if not game.is_measured:
            return
        self._games += 1
        cases = list[tuple[Key, int, int]]()
        for seat in game.players:
            self._models.add(seat.model)
            side, totals = seat.side, seat.totals()
            for skill in (*_JUDGEMENTS, *_LIES):
                if skill.side is None or side == skill.side:
                    cases.append((("skill", skill.key, seat.model, side), *quotient(totals, skill.key)))
            of = sum(seat.count(each) for _, each in _VERDICTS)
            cases += [(("claims", side, verdict), seat.count(count), of) for verdict, count in _VERDICTS]
            cases.append((("night", seat.role), *quotient(totals, "night_effect")))
            if side == Faction.TOWN:
                cases += self._votes(seat)
            if seat.death is not None and "lynch" in seat.death and seat.died_on_day is not None:
                cases.append((("lynch", seat.died_on_day), _is_mistake(seat), 1))
                cases.append((("lynches",), _is_mistake(seat), 1))
        self._tally.add(cases)

    def _votes(self, seat: Seat) -> Iterator[tuple[Key, int, int]]:
        right = dict(seat.by_day(Count.VOTE_RIGHT))
        chance = dict(seat.by_day(Count.VOTE_CHANCE))
        for day, votes in seat.by_day(Count.VOTE):
            for model in {"", seat.model}:
                key: Key = ("votes", model, day)
                self._chance[key] = self._chance.get(key, 0) + chance.get(day, 0)
                yield key, right.get(day, 0), votes

    def judging(self) -> Iterator[Figure | None]:
        """How well the Town judges."""
        if self._games:
            yield self._accuracy()
            yield self._mislynches()
            yield self._skill_figure(
                "judgement",
                "How well does the Town find its opponents?" if len(self._models) < 2 else "Which model judges best?",
                "Of what players of the Town did, the share that was right.",
                _JUDGEMENTS,
            )

    def _accuracy(self) -> Figure | None:
        models = sorted(self._models) if len(self._models) > 1 else [""]
        estimates = [
            of_rate(f"day {day}", self._tally.get("votes", model, day), series=model or "votes", x=day)
            for model in models
            for day in sorted(int(key[2]) for key in self._tally.keys_of("votes") if key[1] == model)
        ]
        estimates = [one for one in estimates if one.n]
        if not estimates:
            return None
        chance = [self._by_lot(day) for day in sorted({int(one.x) for one in estimates})]
        by_lot = {one.x: one.value for one in chance}
        rows = [{**row, "chance": by_lot[one.x]} for row, one in zip(estimate_rows(estimates), estimates, strict=True)]
        several = "model" if len(models) > 1 else ""
        return Figure(
            id="vote-accuracy",
            title="Do the Town's votes get better from day to day?",
            caption="Share of votes of players of the Town for someone who opposes it. The dotted line is the share "
            "that votes drawn by lot among the other living would hit. Bars are 95 % intervals over games.",
            n=self._games,
            unit="games",
            columns=(
                *estimate_columns("when", series=several, value="votes right", n="votes", units="games"),
                DataColumn(name="chance", title="by lot", kind="rate"),
            ),
            rows=tuple(rows),
            spec=over_time(rows, x_title="day", title="votes for an opponent", reference=estimate_rows(chance)),
            methods=(rate_method("game", self._games),),
            notes=interval_notes(estimates, "games"),
        )

    def _by_lot(self, day: int) -> Estimate:
        """What votes by lot would have hit on a day, over all models."""
        votes = self._tally.get("votes", "", day)
        return Estimate(
            "by lot", self._chance["votes", "", day] / 1000 / votes.n, None, votes.n, votes.games, "by lot", day
        )

    def _mislynches(self) -> Figure | None:
        days = sorted(int(key[1]) for key in self._tally.keys_of("lynch"))
        estimates = [of_rate("all days", self._tally.get("lynches"))]
        estimates += [of_rate(f"day {day}", self._tally.get("lynch", day)) for day in days]
        return rate_forest(
            "mislynches",
            "How many of those lynched did not oppose the Town?",
            "Share of lynched players who were not opponents of the Town, by the day of the lynch. Who came back to "
            "life is not among them.",
            estimates,
            games=self._games,
            label="day",
            value="lynched by mistake",
            cases="lynches",
        )

    def deceiving(self) -> Iterator[Figure | None]:
        """Who lies, and what comes of it."""
        if self._games:
            yield self._claims()
            yield self._skill_figure(
                "lies", "Who lies, and what comes of the lies?", "Lies by the side of the liar.", _LIES
            )

    def _claims(self) -> Figure | None:
        rows = [
            row for side in in_order(str(key[1]) for key in self._tally.keys_of("claims")) for row in self._of(side)
        ]
        return claims_figure(
            "claims-by-faction",
            "How honest is each faction?",
            "Claims of the players of each faction: those that were honest, those that were lies, and those whose "
            "honesty is unclear.",
            rows,
            games=self._games,
            label="faction",
        )

    def _of(self, side: str) -> Iterator[dict[str, Value]]:
        for verdict, _ in _VERDICTS:
            rate = self._tally.get("claims", side, verdict)
            if rate.n:
                yield claims_row(side, verdict, rate)

    def _skill_figure(self, name: str, title: str, caption: str, skills: tuple[_Skill, ...]) -> Figure | None:
        several = len(self._models) > 1
        estimates = list[Estimate]()
        for skill in skills:
            keys = [key for key in self._tally.keys_of("skill") if key[1] == skill.key]
            for side in in_order(str(key[3]) for key in keys):
                label = skill.label if skill.side is not None else f"{skill.label}: {side}"
                for model in sorted(self._models):
                    estimates.append(of_rate(label, self._tally.get("skill", skill.key, model, side), series=model))
        return rate_forest(
            name,
            title,
            caption,
            estimates,
            games=self._games,
            label="measure",
            value="share",
            cases="cases",
            series="model" if several else "",
        )

    def nights(self) -> Figure | None:
        """Whose actions at night had an effect."""
        estimates = role_estimates(self._tally, "night")
        return rate_forest(
            "night-effect",
            "Whose actions at night have an effect?",
            "Share of the actions that players dealt a role chose at night that had an effect.",
            estimates,
            games=self._games,
            label="role",
            value="actions with an effect",
            cases="actions",
            series="faction",
        )


def claims_figure(
    name: str,
    title: str,
    caption: str,
    rows: list[dict[str, Value]],
    *,
    games: int,
    label: str,
    notes: tuple[str, ...] = (),
) -> Figure | None:
    """Claims by their verdict, a bar for each label; None without any."""
    if not rows:
        return None
    return Figure(
        id=name,
        title=title,
        caption=caption,
        n=games,
        unit="games",
        columns=(
            DataColumn(name="label", title=label),
            DataColumn(name="part", title="verdict"),
            DataColumn(name="count", title="claims", kind="count"),
            DataColumn(name="share", title="share", kind="rate"),
            *interval_columns("rate"),
            DataColumn(name="units", title="games", kind="count"),
        ),
        rows=tuple(rows),
        spec=shares(
            rows,
            parts=[verdict for verdict, _ in _VERDICTS],
            title="share of claims",
            labels=[*dict.fromkeys(str(row["label"]) for row in rows)],
        ),
        methods=(rate_method("game", games),),
        notes=notes,
    )


def claims_row(label: str, verdict: str, rate: ClusteredRate) -> dict[str, Value]:
    """A row of `claims_figure`: the claims under a label that had a verdict."""
    (row,) = estimate_rows([of_rate(label, rate, series=verdict)])
    return {**row, "part": verdict, "share": row["value"], "count": rate.wins, "words": counted(rate.n, "claims")}


def quotient(totals: Mapping[str, int], key: str) -> tuple[int, int]:
    """The numerator and the denominator of a measure, from the counts of a seat over all days."""
    return quotient_of(_RATES[key], totals)


def _is_mistake(seat: Seat) -> int:
    role = ROLES.get(seat.final_role or seat.role)
    return int(role is None or not opposes_town(role))
