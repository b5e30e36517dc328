"""Outcomes without results of their own, counted; each figure is computed again with pandas and scipy."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from mac_runner.reports import listed, matching, parse_condition
from mac_runner.reports.testing import TEXTS_MAX, figures_of
from mac_runner.types import JsonObject, JsonValue
from tests.kit import index_row, render_summary, summary_of

NAMES = ("Abel", "Cain", "Seth")


def row(index: int, outcome: JsonObject, agents: JsonObject | None = None) -> JsonObject:
    return index_row(index, {"kind": "duel", **outcome}) | ({} if agents is None else {"agents": agents})


def games(count: int = 60) -> list[JsonObject]:
    """Three agents of two definitions change seats from game to game; some games have two of them, some a draw."""
    random, rows = Random(7), []
    for index in range(count):
        names = random.sample(NAMES, random.choice((2, 3)))
        agents: JsonObject = {
            name: ["bold" if name == "Abel" else "shy", "large" if seat else "small", seat]
            for seat, name in enumerate(names)
        }
        payoff: JsonObject = {name: random.choice((0, 1.5, 0.1, 7)) for name in names}
        outcome: JsonObject = {
            "rounds": random.randint(1, 9),
            "is_fair": random.random() < 0.3,
            "ending": random.choice(("deal", "deal", "walkout")),
            "payoff": payoff,
            "kept_word": {name: random.random() < 0.6 for name in names},
            "winner": random.choice((*names, None)),
            "offers": [1, 2],
        }
        rows.append(row(index, outcome, agents))
    return rows


def counted(rows: Sequence[JsonObject]) -> Any:
    return summary_of(rows)["outcomes"]["duel"]


def by_agent(rows: Sequence[Any]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "game": each["index"],
                "definition": definition,
                "model": model,
                "seat": str(seat),
                "payoff": each["outcome"]["payoff"][name],
                "kept_word": each["outcome"]["kept_word"][name],
                "won": each["outcome"]["winner"] == name,
            }
            for each in rows
            for name, (definition, model, seat) in each["agents"].items()
        ]
    )


def test_values_of_conversations_have_the_mean_and_interval_of_pandas_and_scipy() -> None:
    rows = games()
    frame = pd.DataFrame([each["outcome"] for each in rows])
    found = counted(rows)["values"]

    rounds = frame["rounds"]
    lo, hi = stats.t.interval(0.95, len(rounds) - 1, loc=rounds.mean(), scale=stats.sem(rounds))
    fair = stats.binomtest(int(frame["is_fair"].sum()), len(frame)).proportion_ci(method="wilson")

    assert found["rounds"]["score"] == pytest.approx(rounds.mean(), rel=1e-5)
    assert found["rounds"]["interval"] == pytest.approx([lo, hi], rel=1e-5)
    assert found["is_fair"]["rate"] == pytest.approx(frame["is_fair"].mean(), abs=1e-4)
    assert found["is_fair"]["interval"] == pytest.approx([fair.low, fair.high], abs=1e-4)


def test_texts_are_counted_with_the_conversations_that_have_none() -> None:
    rows = games()
    frame = pd.DataFrame([each["outcome"] for each in rows])
    found = counted(rows)["texts"]

    for key in ("ending", "winner"):
        due = frame[key].value_counts().to_dict()
        assert {text: each["count"] for text, each in found[key]["counts"].items()} == due
        assert (found[key]["n"], found[key]["none"]) == (len(frame), int(frame[key].isna().sum()))
        for text, each in found[key]["counts"].items():
            ci = stats.binomtest(due[text], len(frame)).proportion_ci(method="wilson")
            assert each["interval"] == pytest.approx([ci.low, ci.high], abs=1e-4)


def test_values_of_agents_are_means_with_intervals_clustered_by_conversation() -> None:
    """The ratio estimator over clusters, computed again from residuals."""
    rows = games()
    frame, found = by_agent(rows), counted(rows)["agents"]
    assert sorted(found) == ["kept_word", "payoff", "won"]

    for group in ("definition", "model", "seat"):
        for key, part in frame.groupby(group):
            score = found["payoff"][f"by_{group}"][key]
            per_game = part.groupby("game")["payoff"].agg(["sum", "count"])
            mean, m = part["payoff"].mean(), len(per_game)
            residuals = per_game["sum"] - mean * per_game["count"]
            se = np.sqrt(m / (m - 1) * (residuals**2).sum()) / len(part)
            half = stats.t.ppf(0.975, m - 1) * se
            assert (score["n"], score["games"]) == (len(part), m)
            assert score["score"] == pytest.approx(mean, rel=1e-5)
            assert score["interval"] == pytest.approx([mean - half, mean + half], rel=1e-4)
            for truth in ("kept_word", "won"):
                rate = found[truth][f"by_{group}"][key]
                assert (rate["n"], rate["wins"]) == (len(part), int(part[truth].sum()))
                assert rate["rate"] == pytest.approx(part[truth].mean(), abs=1e-4)


def test_truth_values_among_numbers_are_numbers_in_any_order() -> None:
    values: list[JsonValue] = [False, 0, 3, True, 1, 2]

    for ordered in (values, values[::-1]):
        found = counted([row(index, {"points": value}) for index, value in enumerate(ordered)])["values"]["points"]

        assert [repr(found[end]) for end in ("min", "max")] == ["0", "3"]


def test_order_of_conversations_changes_nothing() -> None:
    rows = games()
    due = summary_of(rows)

    assert [*map(summary_of, (rows[::-1], rows[7:] + rows[:7]))] == [due, due]


def test_draws_count_against_all_only_where_winners_are_agents() -> None:
    agents: JsonObject = {"Abel": ["a", "m", 0], "Cain": ["b", "m", 1]}
    draw, won = row(0, {"winner": None}, agents), row(1, {"winner": "Cain"}, agents)
    town = row(2, {"winner": "town"})
    lost = row(3, {"won": {"Abel": False, "Cain": False}}, agents)
    flags = row(4, {"won": True, "winner": None}, agents)

    assert counted([draw, won])["agents"]["won"]["by_definition"]["b"]["rate"] == 0.5
    assert counted([draw, town])["agents"] == {}
    assert counted([lost])["agents"]["won"]["by_definition"]["b"]["rate"] == 0
    assert counted([flags])["agents"] == {}


def test_value_of_conversations_that_is_called_as_one_of_agents_has_a_figure_of_its_own() -> None:
    agents: JsonObject = {"Abel": ["a", "m", 0], "Cain": ["a", "m", 1]}
    rows = [row(index, {"won": index > 0, "winner": "Cain"}, agents) for index in range(3)]
    figures = figures_of(summary_of(rows))

    found = {name: (one.n, one.value) for name, one in figures.items() if name.endswith("won")}
    assert found == {"won": (6, 0.5), "outcome.won": (3, pytest.approx(2 / 3, abs=1e-4))}


def test_what_can_be_counted_is_and_what_cannot_is_named() -> None:
    """One value has a mean and no interval; a number may be too large, and texts too many or too long."""
    sizes = [row(index, {"size": size}) for index, size in enumerate([1e308, -1e308, 1e-300, 3, 10**400])]
    words = [row(9 + index, {"words": f"word {index}"}) for index in range(TEXTS_MAX + 1)]
    found = counted([*sizes, *words, row(999, {"score": 2.5, "speech": "long " * 40, "path": [1, {"x": 2}]})])

    score = found["values"]["score"]
    assert (score["n"], score["score"], score["interval"]) == (1, 2.5, None)
    assert found["values"]["size"]["n"] == 4
    assert found["texts"]["words"] == {"n": TEXTS_MAX + 1, "none": 0, "counts": None}
    assert found["texts"]["speech"]["counts"] is None
    assert found["not_counted"] == {"path": 1, "size": 1}


def test_every_value_is_printed_and_is_a_figure_of_a_grid() -> None:
    summary = summary_of(games())
    text, figures = render_summary(summary), figures_of(summary)

    for part in ("outcomes of duel", "rounds", "walkout", "(none)", "by agent", "bold", "Not counted", "offers (60)"):
        assert part in text
    assert {"rounds", "is_fair", "ending=deal", "payoff.bold", "won.shy"} <= set(figures)
    assert figures["payoff.bold"].unit == "score"
    assert figures["won.shy"].unit == "rate"


def test_values_of_outcomes_are_columns_and_can_be_compared() -> None:
    rows = games()
    how = listed("anything").with_outcomes(rows)

    def found(*conditions: str) -> list[Any]:
        parsed = [parse_condition(text, how.columns) for text in conditions]
        return [values["number"] for values in matching(rows, how, parsed)]

    outcomes: list[Any] = [each["outcome"] for each in rows]
    assert found("winner=abel") == [place for place, each in enumerate(outcomes) if each["winner"] == "Abel"]
    assert found("payoff.Cain>1") == [place for place, each in enumerate(outcomes) if each["payoff"].get("Cain", 0) > 1]
    assert found("is_fair", "rounds>=5") == [
        place for place, each in enumerate(outcomes) if each["is_fair"] and each["rounds"] >= 5
    ]
