"""A measure that is declared in one place is in the summary, the printed tables, the grid and the report."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mac_runner import registry
from mac_runner.environments.discussion.testing import ALL_MEASURES, discussion_results
from mac_runner.environments.town_of_salem.testing import MEASURES as GAME_MEASURES
from mac_runner.environments.town_of_salem.testing import Count, Faction, game_results, judged, seat_measure
from mac_runner.errors import ConfigError, RunDirectoryError
from mac_runner.figures.registry import run_sections, study_sections
from mac_runner.figures.testing import Study
from mac_runner.intervals import ClusteredMean, one_cluster, wilson
from mac_runner.measures import By, Counted, InGrid, Keys, Mean, Measure, Rate, Share, Sum, measure_tables, measured
from mac_runner.paired import paired_of, paired_tables
from mac_runner.plugins import Code
from mac_runner.reports import GridRow, compare_combinations, grid_table
from mac_runner.reports.tables import grid_tables
from mac_runner.results import Declared, Table
from mac_runner.types import JsonObject
from tests.environments.discussion.table import outcome
from tests.figures.reports import run
from tests.kit import game_player, index_row, render_summary, summary_of

pytest.importorskip("altair")
pytest.importorskip("scipy")


def throws(outcome: Any) -> Iterator[tuple[Keys, Share]]:
    """Each throw of a player is a case."""
    for player, thrown in outcome["thrown"].items():
        yield from ((("first" if player == "ann" else "other",), Share(int(face == 6), 1)) for face in thrown)


SIXES = Measure(
    place="dice.sixes.{player}",
    cases=throws,
    title="How often do players throw a six?",
    value="sixes",
    unit="throws",
    compared={("first",): "share"},
)
PIPS = Measure(
    place="dice.pips",
    cases=lambda outcome: [((), Sum(sum(faces), len(faces))) for faces in outcome["thrown"].values()],
    title="How many pips does a throw have?",
    value="pips",
    unit="throws",
    kind="mean",
)
GAMES: list[JsonObject] = [
    {"kind": "dice", "thrown": {"ann": [6, 6, 1], "bob": [2], "cat": [6, 3]}},
    {"kind": "dice", "thrown": {"ann": [4], "bob": [5], "cat": [1]}},
]


@pytest.fixture
def dice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment from outside, with one measure and nothing else."""
    monkeypatch.setattr(registry, "_LOADED", {})
    registry._results.cache_clear()
    spec = registry.EnvironmentSpec(
        section="dice",
        settings=registry.environment_specs()["echo"].settings,
        description="Dice.",
        build=registry.environment_specs()["echo"].build,
        results=lambda: measured(SIXES, PIPS, noun="games"),
    )
    registry.adopt_environment("./dice.py:dice", spec, Code(None, None, "0" * 64, Path("dice.py")))


def rows_of(*outcomes: JsonObject) -> list[JsonObject]:
    return [index_row(number, each) for number, each in enumerate(outcomes)]


def grid_of(summary: JsonObject) -> dict[str, Any]:
    """A row of `grid.csv`."""
    return {
        column.name: column.cells[0]
        for column in grid_table([GridRow(slug="one", values={}, session=1, summary=summary)]).columns
    }


@pytest.mark.usefixtures("dice")
def test_measure_of_an_environment_from_outside_is_seen_everywhere() -> None:
    rows = rows_of(*GAMES)
    summary = summary_of(rows)
    first = summary["dice"]["sixes"]["first"]
    assert (first["count"], first["n"], first["conversations"], first["clusters"]) == (2, 4, 2, 2)
    assert (summary["dice"]["sixes"]["other"]["count"], summary["dice"]["sixes"]["other"]["n"]) == (1, 5)

    text = render_summary(summary)
    assert SIXES.title in text
    assert "50.0%" in text

    grid = grid_of(summary)
    assert (grid["dice.sixes.first.n"], grid["dice.sixes.first.rate"]) == (4, 0.5)
    assert [grid["dice.sixes.first.lo"], grid["dice.sixes.first.hi"]] == first["interval"]

    data = run("dice", rows, environment="./dice.py:dice")
    figure, _ = [figure for part in run_sections(data) for figure in part.figures]
    assert (figure.title, figure.unit) == (SIXES.title, "throws")
    assert [(row["player"], row["value"]) for row in figure.rows] == [("first", 0.5), ("other", 0.2)]
    assert figure.spec is not None
    other = run("again", rows_of(GAMES[1]), environment="./dice.py:dice")
    _, part = study_sections(Study(runs=[data, other]))
    figure, _ = part.figures
    assert [(row["run"], row["player"], row["value"]) for row in figure.rows] == [
        *(("dice", "first", 0.5), ("dice", "other", 0.2)),
        *(("again", "first", 0.0), ("again", "other", 0.0)),
    ]


@pytest.mark.usefixtures("dice")
def test_a_measure_of_an_environment_from_outside_is_compared_with_a_baseline() -> None:
    """Game by game: who throws more sixes than in the game of the same number in the other combination?"""
    played = {"fair": rows_of(*GAMES), "loaded": rows_of(*GAMES[:1] * 2)}
    data = [run(name, rows, environment="./dice.py:dice") for name, rows in played.items()]
    combinations = [
        GridRow(slug=one.name, values={"dice": one.name}, session=1, summary=summary_of(one.read_rows()))
        for one in data
    ]

    compared = compare_combinations(combinations, played.__getitem__, Declared("fair", "dice.sixes.first"))

    assert compared is not None
    (found,) = (paired_of(compared) or pytest.fail("nothing is compared")).rows or ()
    assert (found.n, found.cases, found.values, found.difference) == (2, (6, 4), (0.6667, 0.5), 0.1667)
    parts = grid_tables(summary_of(played["fair"]), combinations, compared)
    tables = {part.title: part.rows for part in parts if isinstance(part, Table)}
    (row,) = tables["differences from the baseline, dice fair (n games)"]
    assert row[:4] == ("dice.sixes.first *", "dice loaded", "2", "66.7 : 50.0")
    assert any("Paired by game." in part for part in parts if isinstance(part, str))
    columns = {column.name: column.cells for column in grid_table(combinations, compared).columns}
    assert columns["dice.sixes.first.diff"] == (None, 0.1667)
    differences, _ = study_sections(Study(runs=data))
    (figure,) = differences.figures
    assert [(row["outcome"], row["run"], row["difference"]) for row in figure.rows] == [
        ("dice.sixes.first", "loaded", 0.1667)
    ]


@pytest.mark.usefixtures("dice")
def test_a_figure_of_several_runs_is_on_the_cases_of_all_of_them_also_where_the_first_has_none() -> None:
    played = {"none": GAMES[:0], "both": GAMES, "one": GAMES[1:]}
    runs = [run(name, rows_of(*games), environment="./dice.py:dice") for name, games in played.items()]

    sixes, pips = [figure for part in study_sections(Study(runs=runs)) for figure in part.figures]

    assert (sixes.n, pips.n) == (5 + 2, 9 + 3)


@pytest.mark.usefixtures("dice")
def test_a_mean_is_seen_everywhere_as_a_rate_is() -> None:
    rows = rows_of(*GAMES)
    summary = summary_of(rows)
    found = summary["dice"]["pips"]
    counted = ClusteredMean()
    counted.add(24, 6)
    counted.add(10, 3)
    assert counted.interval is not None
    ends = [round(end, 4) for end in counted.interval]
    told = {"n": 9, "conversations": 2, "clusters": 2, "total": 34, "mean": 3.7778, "interval": ends}
    assert found == told

    text = render_summary(summary)
    assert PIPS.title in text
    assert "3.78" in text
    assert (grid_of(summary)["dice.pips.n"], grid_of(summary)["dice.pips.mean"]) == (9, 3.7778)
    _, figure = [one for part in run_sections(run("dice", rows, environment="./dice.py:dice")) for one in part.figures]
    assert [(row["value"], row["lo"], row["hi"]) for row in figure.rows] == [(3.7778, *ends)]
    assert "3.778 (3.197 to 4.359), 9 in 2 conversations" in str(figure.spec)
    assert "Cochran" in figure.methods[0].statement


def test_a_lift_is_written_in_points_and_goes_by_question() -> None:
    lift = Measure(
        place="x.lift",
        cases=lambda outcome: [((), Sum(*outcome))],
        kind="lift",
        statistic=lambda _keys: Mean(scale=1000),
        title="Above chance?",
    )
    counted = Counted([lift])
    for number, totals in enumerate((-200, 100, 300, 600)):
        counted.add((totals, 1), f"question {number % 2}")
    report: Any = counted.report()

    assert {key: report["x"]["lift"][key] for key in ("n", "clusters", "mean")} == {"n": 4, "clusters": 2, "mean": 0.2}
    (table,) = measure_tables([lift], report)
    assert not isinstance(table, str)
    assert table.rows[0][2].startswith("+20.0")


@pytest.mark.usefixtures("dice")
def test_damaged_outcome_of_a_measure_is_refused_by_the_name_of_its_row() -> None:
    with pytest.raises(RunDirectoryError, match=r"^the row of 7 cannot be measured: KeyError"):
        measured(SIXES).counter().add({"kind": "dice"}, "the row of 7")


def test_measures_that_would_be_counted_together_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"2 measures have the place 'dice\.sixes\.\{player\}'"):
        measured(SIXES, PIPS, SIXES)


def test_interval_goes_by_conversation_or_by_what_several_share() -> None:
    single = Measure(place="x.y", cases=lambda share: [((), share)])

    def clusters(names: list[str | None]) -> Any:
        counted = Counted([single])
        for number, name in enumerate(names):
            with one_cluster(name):
                counted.add(Share(number % 2, 1))
        report: Any = counted.report()
        return report["x"]["y"]

    assert clusters([None] * 8)["clusters"] == 8
    assert clusters(["a", "a", "b", "b", None, None])["clusters"] == 4
    lo, hi = clusters([None] * 400)["interval"]
    assert (lo, hi) == pytest.approx(wilson(200, 400), abs=0.002)


@pytest.mark.parametrize("question", [None, "the only one"])
def test_a_rate_is_as_large_after_many_conversations_as_after_few(question: str | None) -> None:
    def size(conversations: int) -> int:
        rate = Rate()
        for number in range(conversations):
            rate.add(Share(number % 2, 1), question)
        return len(pickle.dumps(rate))

    assert size(5_000) < size(500) + 50


def test_keys_stand_in_the_order_of_their_words_and_numbers_in_theirs() -> None:
    words = By("kind", {"first": "first answers", "final": "last answers"})
    cases = [((kind, number), Share(1, 1)) for kind in ("final", "first") for number in (10, 9)]
    counted = Counted([Measure(place="x.{kind}.{number}", cases=lambda _outcome: cases, by={"kind": words})])
    counted.add(None)
    report: Any = counted.report()

    assert {kind: [*found] for kind, found in report["x"].items()} == {"first": ["9", "10"], "final": ["9", "10"]}
    assert [*report["x"]] == ["first", "final"]


def test_one_more_measure_of_discussions_is_seen_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[tuple[str, ...], InGrid] = {
        ("A",): InGrid("long.A", is_headline=True, words="long discussions that end with A")
    }
    long = Measure(
        place="discussions.long.{verdict}",
        cases=lambda result: [((result.verdict or "none",), Share(int(result.rounds > 1), 1))],
        title="How often do discussions last?",
        unit="discussions",
        grid=shown.get,
        compared={("A",): "share"},
    )
    results = discussion_results((*ALL_MEASURES, long))
    monkeypatch.setattr(registry, "_results", lambda _loaded: {"discussion": results})
    rows = rows_of(outcome(), outcome(verdict="A"), outcome(verdict="A", rounds=1, answers={}, changes=[]))
    other = rows_of(outcome(), outcome(verdict="A"), outcome(verdict="A"))
    summary = summary_of(rows)

    assert summary["discussions"]["long"]["A"]["rate"] == 0.5
    assert long.title in render_summary(summary)
    assert (grid_of(summary)["long.A.n"], grid_of(summary)["long.A.rate"]) == (2, 0.5)
    one, two = (run(name, some, environment="discussion") for name, some in (("talk", rows), ("other", other)))
    (found,) = [figure for part in run_sections(one) for figure in part.figures if figure.title == long.title]
    assert [(row["verdict"], row["value"]) for row in found.rows] == [("A", 0.5), ("none", 1.0)]

    combinations = [
        GridRow(slug=data.name, values={"hub": data.name}, session=1, summary=summary_of(data.read_rows()))
        for data in (one, two)
    ]
    read = {"talk": rows, "other": other}
    compared = compare_combinations(combinations, lambda slug: read[slug], Declared("talk", "long.A"))
    assert compared is not None
    (table, _) = paired_tables(compared, "discussion")
    assert isinstance(table, Table)
    assert table.rows[0][:4] == ("long.A *", "hub other", "2", "100.0 : 50.0")
    columns = {column.name: column.cells for column in grid_table(combinations, compared).columns}
    assert columns["long.A.diff"] == (None, 0.5)
    figures = {figure.id: figure for part in study_sections(Study(runs=[one, two])) for figure in part.figures}
    differences = {row["outcome"]: row["difference"] for row in figures["difference-rates"].rows}
    assert differences["long discussions that end with A"] == 0.5


def test_one_more_measure_of_games_is_seen_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = seat_measure(
        *("form", "waits", "turns waited", "turns in which it waited", Count.SILENT, Count.TURN),
        figures=judged("turns in which the Town waited"),
        difference=("the Town's turns waited", Faction.TOWN),
    )
    results = game_results((*GAME_MEASURES, *waits))
    monkeypatch.setattr(registry, "_results", lambda _loaded: {"game": results})

    def game(days: int, silent: int) -> JsonObject:
        measures: JsonObject = {"tu": 4, "si": silent} if silent else {"tu": 4}
        player = game_player(agent="Ann", definition="a", role="doctor", won=True, measures=measures)
        return {"kind": "game", "ending": "win", "days": days, "winners": ["town"], "players": [player]}

    rows = rows_of(game(2, 1), game(3, 0))
    summary = summary_of(rows)

    found = summary["measures"]["by_definition"]["a"]["town"]["waits"]
    assert (found["n"], found["games"], found["wins"]) == (8, 2, 1)
    assert summary["measures"]["by_role"]["doctor"]["a"]["waits"] == found
    assert "turns waited, %" in render_summary(summary)
    assert (grid_of(summary)["waits.a.town.n"], grid_of(summary)["waits.a.town.rate"]) == (8, 0.125)
    one, other = (run(name, some, environment="town_of_salem") for name, some in (("one", rows), ("other", rows[:1])))
    figures = {figure.id: figure for part in run_sections(one) for figure in part.figures}
    (drawn,) = [row for row in figures["judgement"].rows if row["measure"] == "turns in which the Town waited"]
    assert (drawn["of"], drawn["n"], drawn["value"]) == ("m", 8, 0.125)
    compared = [figure for part in study_sections(Study(runs=[one, other])) for figure in part.figures]
    (differences,) = [figure for figure in compared if figure.id == "skills-difference"]
    assert [(row["outcome"], row["run"], row["difference"]) for row in differences.rows] == [
        ("the Town's turns waited", "other", 0.0)
    ]
    assert (differences.unit, differences.methods[0].unit) == ("deals", "deal"), "a deal may be several games"
    assert any("intervals are too narrow and p too small" in note for note in differences.notes)
