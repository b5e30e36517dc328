"""Deals that are played several times are one cluster: repeating a game adds no certainty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

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
    one_cluster,
)
from mac_runner.reports.testing import OutcomeResults
from mac_runner.types import JsonObject
from tests.kit import index_row, summary_of

Game: TypeAlias = tuple[int, int]
"""How many of how many cases were won."""
games = st.lists(st.integers(0, 4).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1, max_size=12)


def rate(game: Game, counted: ClusteredRate) -> None:
    # One case a game: a rate is never worth more cases than it has, and a repetition adds some.
    counted.add(int(game[0] > 1), 1)


def mean(game: Game, counted: ClusteredMean) -> None:
    counted.add(*game)


def difference(game: Game, counted: ClusteredDifference) -> None:
    counted.count(int(game[0] > 2), int(game[0] == 1), 1)


def exact(game: Game, counted: ExactClusteredMean) -> None:
    counted.add([1.5] * game[0] + [-2] * (game[1] - game[0]))


def value(game: Game, counted: ExactMean) -> None:
    counted.add(game[0] - game[1] / 2)


def truth(game: Game, counted: ExactMean) -> None:
    counted.add(game[0] > game[1] / 2)


KINDS: list[tuple[type, Callable[..., None]]] = [
    (ClusteredRate, rate),
    (ClusteredMean, mean),
    (ClusteredDifference, difference),
    (ExactClusteredMean, exact),
    (ExactMean, value),
    (ExactMean, truth),
]


def interval(kind: type, add: Callable[..., None], deals: Sequence[Sequence[Game]], *, named: bool) -> Interval | None:
    counted = kind()
    for number, deal in enumerate(deals):
        with one_cluster(number if named else None):
            for game in deal:
                add(game, counted)
    found: Interval | None = counted.interval
    return found


def is_same(one: Interval | None, other: Interval | None) -> bool:
    return (one is None) == (other is None) and (one is None or tuple(one) == pytest.approx(other, abs=1e-9))


@pytest.mark.parametrize(("kind", "add"), KINDS)
@settings(max_examples=20)
@given(played=games, k=st.integers(2, 5))
def test_repeated_games_of_a_deal_are_worth_one_of_them(
    kind: type, add: Callable[..., None], played: list[Game], k: int
) -> None:
    once = interval(kind, add, [[game] for game in played], named=True)
    repeated = interval(kind, add, [[game] * k for game in played], named=True)

    assert is_same(once, repeated)
    # A rate of independent cases is Wilson's.
    assert add is truth or is_same(once, interval(kind, add, [[game] for game in played], named=False))


@pytest.mark.parametrize(("kind", "add"), KINDS)
@settings(max_examples=20)
@given(deals=st.lists(games, min_size=1, max_size=6))
def test_the_order_inside_a_deal_does_not_matter(kind: type, add: Callable[..., None], deals: list[list[Game]]) -> None:
    assert is_same(
        interval(kind, add, deals, named=True), interval(kind, add, [deal[::-1] for deal in deals], named=True)
    )


def test_games_that_go_as_their_deal_does_make_a_wider_interval() -> None:
    deals = [[(number % 2, 1)] * 8 for number in range(20)]

    alone = interval(ClusteredRate, rate, deals, named=False)
    grouped = interval(ClusteredRate, rate, deals, named=True)

    assert alone is not None
    assert grouped is not None
    assert grouped.hi - grouped.lo > 2 * (alone.hi - alone.lo)


def test_discussions_of_one_question_are_clusters_by_deal() -> None:
    counted = Clusters(2)
    for deal, right in ((0, 1), (0, 0), (1, 1), (1, 1)):
        with one_cluster(deal):
            counted.add("a question", right, 1)

    assert [*counted] == [(1, 2), (2, 2)]


def row(index: int, group: int, outcome: JsonObject) -> JsonObject:
    more: JsonObject = {"group": group, "sample": 0, "agents": {"Ann": ["a", "m", 0]}, "metrics": {"words": index % 3}}
    return index_row(index, outcome) | more


def outcome(deal: int) -> JsonObject:
    return {
        "kind": "own",
        "score": deal,
        "is_fair": deal % 2 == 0,
        "end": "ab"[deal % 2],
        "won": {"Ann": deal % 3 == 0},
    }


def test_a_summary_goes_by_group() -> None:
    def summary(k: int) -> JsonObject:
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
    found = counted.report()["texts"]

    assert isinstance(found, dict)
    assert found["end"]["n"] == 4  # type: ignore[index,call-overload]
