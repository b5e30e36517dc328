"""Survival, differences and families of tests, against SciPy and at their edges; one deal is one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.compared import compare, compare_apart, with_q
from mac_runner.figures.testing import Case, interval_notes, log_rank, of_rate, survival
from mac_runner.intervals import ClusteredRate, ExactClusteredMean
from mac_runner.types import JsonObject, JsonValue
from tests.figures.reports import run
from tests.kit import index_row, known

stats = pytest.importorskip("scipy.stats")


def rate(*games: tuple[int, int]) -> ClusteredRate:
    found = ClusteredRate()
    for wins, n in games:
        found.add(wins, n)
    return found


def ecdf(cases: Sequence[Case]) -> Any:
    """The survival of these cases as SciPy has it."""
    ended, alive = ([case.time for case in cases if case.has_ended is has_ended] for has_ended in (True, False))
    return stats.ecdf(stats.CensoredData(uncensored=ended, right=alive)).sf


def test_survival_is_that_of_scipy() -> None:
    chance = Random(5)
    cases = [Case(chance.randrange(6), chance.randint(1, 8), chance.random() < 0.6) for _ in range(40)]
    points = survival(cases)

    expected = [float(ecdf(cases).evaluate(point.time)) for point in points]
    assert [point.share for point in points] == pytest.approx(expected)


def test_band_of_games_of_one_case_is_that_of_independent_cases() -> None:
    """The sum over games is then Greenwood's, up to Student's factor and that of the games less one."""
    chance = Random(6)
    cases = [Case(game, chance.randint(1, 6), chance.random() < 0.7) for game in range(400)]
    band = ecdf(cases).confidence_interval(method="log-log")
    for point in survival(cases)[:-1]:
        ends = [float(end.evaluate(point.time)) for end in (band.low, band.high)]
        assert [*known(point.interval)] == pytest.approx(ends, abs=0.005)


def test_survival_knows_nothing_of_no_case_and_has_a_band_by_games_where_there_are_several() -> None:
    (point,) = survival([Case(game, 3, False) for game in range(8) for _ in range(10)])

    assert survival([]) == ()
    assert survival([Case(0, 2, True), Case(0, 3, False)])[0].interval is None
    assert point.share == 1.0
    assert known(point.interval).lo == pytest.approx(0.676, abs=0.01)


def test_log_rank_needs_two_groups_and_a_death() -> None:
    alive, dead = [Case(0, 3, False)], [Case(1, 2, True), Case(2, 1, True)]

    assert log_rank([], dead) is None
    assert log_rank(alive, alive) is None
    assert log_rank(alive, dead) is not None


def test_difference_points_from_the_first_to_the_second() -> None:
    low, high = rate(*[(0, 1)] * 15, *[(1, 1)] * 5), rate(*[(0, 1)] * 5, *[(1, 1)] * 15)
    unpaired = compare_apart(low, high)
    paired = compare({deal: (deal < 5, 1) for deal in range(20)}, {deal: (deal < 15, 1) for deal in range(20)})
    ratios = compare(dict.fromkeys(range(20), (1, 4)), {deal: (3 - deal % 2, 4) for deal in range(20)})
    for found in map(known, (unpaired, paired, ratios)):
        lo, hi = known(found.interval)
        assert 0 < lo < found.difference < hi
    # Runs that share nothing have none.
    assert compare({1: (1, 2)}, {2: (1, 2)}) is None
    assert compare_apart(ClusteredRate(), rate((1, 1))) is None


def test_family_is_adjusted_as_scipy_does_without_gaps() -> None:
    chances = [0.01, 0.04, 0.03]
    alike = known(compare({1: (1, 2)}, {1: (1, 2)}))
    found = with_q({"none": None, **{str(p): msgspec.structs.replace(alike, p=p) for p in chances}})

    assert [*found] == ["0.01", "0.04", "0.03"]
    assert [one.q for one in found.values()] == pytest.approx([*stats.false_discovery_control(chances)])


def test_too_few_games_have_no_interval_and_say_so(snapshot: SnapshotAssertion) -> None:
    few, some, many = rate(*[(1, 2)] * 4), rate(*[(1, 2)] * 10), rate(*[(1, 2)] * 30)
    estimates = [of_rate(name, one) for name, one in (("few", few), ("some", some), ("many", many))]

    assert [one["lo"] is None for one in estimates] == [True, False, False]
    assert tuple(interval_notes(estimates, "games")) == snapshot


pytest.importorskip("altair")

TURNS = (3, 5, 9, 4, 8, 8)
VERDICTS = (("lie", "lie"), ("lie", "honest"), ("honest",), (), ("honest", "honest", "unclear"), ("lie",))


@pytest.mark.parametrize("shared", ["group", "fork_of"])
def test_mean_lengths_and_claims_by_kind_are_by_cluster(shared: str) -> None:
    from mac_runner.figures.testing import claims_by_kind, length_figures

    mean, lies, claims = ExactClusteredMean(), ClusteredRate(), list[JsonObject]()
    for place in range(0, 6, 2):
        said = [verdict for verdicts in VERDICTS[place : place + 2] for verdict in verdicts]
        mean.add(TURNS[place : place + 2])
        lies.add(said.count("lie"), len(said))
    names: list[JsonValue] = [0, 1, 2] if shared == "group" else [f"small-{n:06d}-f3-d000" for n in range(3)]
    rows = [index_row(place, {}) | {shared: names[place // 2]} for place in range(6)]
    for row, turns, verdicts in zip(rows, TURNS, VERDICTS, strict=True):
        none: JsonObject = {"prompt": 0, "completion": 0, "timing": {"cached": 0}}
        row["counts"] = {"turns": turns, "corrections": 0, "defaults": 0, "tokens": none}
        claims += [{"conversation": row["task_id"], "kind": "role", "verdict": verdict} for verdict in verdicts]
    of = run("small", rows, environment="town_of_salem", claims=claims)

    lengths = next(iter(length_figures([of] * 2)))
    counted, _ = claims_by_kind(of)
    lied: Any = counted["kinds"]["role"]["lie"]  # type: ignore[index, call-overload]

    for found in lengths.rows:
        assert (found["n"], found["mean"], found["lo"], found["hi"]) == (6, mean.mean, *known(mean.interval))
    assert (lied["n"], *lied["interval"]) == (9, *(round(end, 4) for end in known(lies.interval)))
