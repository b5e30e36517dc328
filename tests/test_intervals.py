"""Intervals: of single cases, and of deals that are played several times, which are one cluster each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mac_runner.environments.discussion.testing import Clusters
from mac_runner.intervals import (
    ClusteredDifference,
    ClusteredMean,
    ClusteredRate,
    ExactClusteredMean,
    ExactMean,
    Interval,
    matched_difference,
    one_cluster,
    wilson,
)
from mac_runner.reports.testing import OutcomeResults
from mac_runner.types import JsonObject
from tests.kit import index_row, known, summary_of

cases = st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_wilson_gives_the_published_values() -> None:
    for wins, n, lo, hi in (
        (50, 100, 0.4038, 0.5962),
        (20, 100, 0.1334, 0.2888),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
    ):
        assert [round(end, 4) for end in known(wilson(wins, n))] == [lo, hi]
    assert wilson(0, 0) is None
    for wins, n in ((3, 2), (-1, 2), (0, -1)):
        with pytest.raises(ValueError, match="must lie between"):
            wilson(wins, n)


@given(cases, st.integers(2, 20))
def test_wilson_holds_the_rate_mirrors_losses_and_narrows_with_more_cases(case: tuple[int, int], factor: int) -> None:
    wins, n = case
    won, lost, many = known(wilson(wins, n)), known(wilson(n - wins, n)), known(wilson(wins * factor, n * factor))

    assert 0 <= won.lo <= wins / n <= won.hi <= 1
    assert won.lo < won.hi
    assert (won.lo, won.hi) == pytest.approx((1 - lost.hi, 1 - lost.lo))
    assert many.hi - many.lo < won.hi - won.lo


def test_matched_difference_is_the_adjusted_interval() -> None:
    for first, second, n, lo, hi in (
        # By the formula: (15.5 - 5.5) / 27 ± 1.96 · sqrt(21 - 100 / 27) / 27.
        (15, 5, 25, 0.0684, 0.6723),
        (0, 0, 10, -0.1633, 0.1633),
        (1, 1, 2, -0.8487, 0.8487),
    ):
        assert [*known(matched_difference(first, second, n))] == pytest.approx([lo, hi], abs=2e-4)
    for first, second, n in ((5, 0, 5), (0, 5, 5), (1, 0, 1), (40, 60, 100)):
        interval = known(matched_difference(first, second, n))
        assert -1 <= interval.lo <= (first - second) / n <= interval.hi <= 1
    assert matched_difference(0, 0, 0) is None
    with pytest.raises(ValueError, match="must lie between"):
        matched_difference(3, 3, 5)


def test_one_case_a_game_is_the_plain_interval_and_games_that_all_went_one_way_are_one_case_each() -> None:
    single, alike = ClusteredRate(), ClusteredRate()
    for game in range(50):
        single.add(game % 3 == 0, 1)
    for _ in range(10):
        alike.add(7, 7)

    # The variance of clusters has a factor of 50 / 49.
    assert known(single.interval) == pytest.approx(known(wilson(single.wins, single.n)), abs=0.003)
    assert alike.interval == wilson(10, 10)


Game: TypeAlias = tuple[int, int]
"""How many of how many cases were won."""
games = st.lists(st.integers(0, 4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=12)


KINDS: dict[str, tuple[type, Callable[[Game, Any], None]]] = {
    # One case a game: a rate is never worth more cases than it has, and a repetition adds some.
    "rate": (ClusteredRate, lambda game, counted: counted.add(int(game[0] > 1), 1)),
    "mean": (ClusteredMean, lambda game, counted: counted.add(*game)),
    "difference": (ClusteredDifference, lambda game, counted: counted.add(int(game[0] > 2), int(game[0] == 1), 1)),
    "exact": (ExactClusteredMean, lambda game, counted: counted.add([1.5] * game[0] + [-2] * (game[1] - game[0]))),
    "value": (ExactMean, lambda game, counted: counted.add(game[0] - game[1] / 2)),
    "truth": (ExactMean, lambda game, counted: counted.add(game[0] > game[1] / 2)),
}
"""What is counted, and how it takes a game."""


def interval(kind: str, deals: Sequence[Sequence[Game]], *, named: bool = True) -> Interval | None:
    counter, add = KINDS[kind]
    counted = counter()
    for number, deal in enumerate(deals):
        with one_cluster(number if named else None):
            for game in deal:
                add(game, counted)
    found: Interval | None = counted.interval
    return found


def is_same(one: Interval | None, other: Interval | None) -> bool:
    return (one is None) == (other is None) and (one is None or tuple(one) == pytest.approx(other, abs=1e-9))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(played=games, k=st.integers(2, 5))
def test_repeated_games_of_a_deal_are_worth_one_of_them(kind: str, played: list[Game], k: int) -> None:
    once = interval(kind, [[game] for game in played])

    assert is_same(once, interval(kind, [[game] * k for game in played]))
    # A rate of independent cases is Wilson's.
    assert kind == "truth" or is_same(once, interval(kind, [[game] for game in played], named=False))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(deals=st.lists(games, min_size=1, max_size=6))
def test_the_order_inside_a_deal_does_not_matter(kind: str, deals: list[list[Game]]) -> None:
    assert is_same(interval(kind, deals), interval(kind, [deal[::-1] for deal in deals]))


def test_games_that_go_as_their_deal_does_make_a_wider_interval() -> None:
    deals = [[(number % 2, 1)] * 8 for number in range(20)]

    alone = known(interval("rate", deals, named=False))
    grouped = known(interval("rate", deals))

    assert grouped.hi - grouped.lo > 2 * (alone.hi - alone.lo)


def test_discussions_of_one_question_are_clusters_by_deal() -> None:
    counted = Clusters(2, ClusteredRate)
    for deal, right in ((0, 1), (0, 0), (1, 1), (1, 1)):
        with one_cluster(deal):
            counted.add("a question", right, 1)

    found = counted.summed()
    assert (found.n, found.games, found.clusters) == (4, 4, 2)
    expected = ClusteredRate()
    expected.add(1, 2)
    expected.add(2, 2)
    assert found.interval == expected.interval


def row(index: int, group: int, outcome: JsonObject) -> JsonObject:
    more: JsonObject = {"group": group, "sample": 0, "agents": {"Ann": ["a", "m", 0]}, "metrics": {"words": index % 3}}
    return index_row(index, outcome) | more


def outcome(deal: int) -> JsonObject:
    values: JsonObject = {"score": deal, "is_fair": deal % 2 == 0, "end": "ab"[deal % 2]}
    return {"kind": "own", **values, "won": {"Ann": deal % 3 == 0}}


def test_a_summary_goes_by_group() -> None:
    def summary(k: int) -> Any:
        return summary_of(row(deal, deal, outcome(deal)) for deal in range(9) for _ in range(k))

    once, repeated = summary(1), summary(4)

    def ends(found: object, path: str = "") -> dict[str, object]:
        if not isinstance(found, dict):
            return {}
        here = {path: found["interval"]} if "interval" in found else {}
        return here | {key: end for name, part in found.items() for key, end in ends(part, f"{path}.{name}").items()}

    expected = ends({key: once[key] for key in ("outcomes", "metrics")})
    assert len(expected) > 8
    assert ends({key: repeated[key] for key in ("outcomes", "metrics")}) == expected


def test_without_groups_a_text_that_is_null_counts_against_the_others() -> None:
    counted = OutcomeResults()
    for end in ("a", None, "b", "a"):
        counted.add({"end": end}, {})
    found: Any = counted.report()["texts"]

    assert found["end"]["n"] == 4
