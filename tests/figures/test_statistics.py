"""Survival, differences and families of tests, against SciPy and at their edges; one deal is one cluster."""

from __future__ import annotations

from random import Random

import pytest
from syrupy.assertion import SnapshotAssertion

from mac_runner.figures.testing import (
    Case,
    RateDifference,
    RunData,
    interval_notes,
    log_rank,
    of_rate,
    rate_difference,
    ratio_difference,
    survival,
    with_q,
    won_difference,
)
from mac_runner.intervals import ClusteredRate, ExactClusteredMean
from mac_runner.types import JsonObject
from tests.figures.reports import index_row, run

stats = pytest.importorskip("scipy.stats")


def rate(*games: tuple[int, int]) -> ClusteredRate:
    found = ClusteredRate()
    for wins, n in games:
        found.add(wins, n)
    return found


def test_survival_is_that_of_scipy() -> None:
    chance = Random(5)
    for cases in ([Case(chance.randrange(6), chance.randint(1, 8), chance.random() < 0.6) for _ in range(40)],):
        seen = stats.CensoredData(
            uncensored=[case.time for case in cases if case.has_ended],
            right=[case.time for case in cases if not case.has_ended],
        )
        curve = stats.ecdf(seen).sf

        assert [point.share for point in survival(cases)] == pytest.approx(
            [float(curve.evaluate(point.time)) for point in survival(cases)]
        )


def test_band_of_games_of_one_case_is_that_of_independent_cases() -> None:
    """The sum over games is then Greenwood's, up to Student's factor and that of the games less one."""
    chance = Random(6)
    cases = [Case(game, chance.randint(1, 6), chance.random() < 0.7) for game in range(400)]
    seen = stats.CensoredData(
        uncensored=[case.time for case in cases if case.has_ended],
        right=[case.time for case in cases if not case.has_ended],
    )
    band = stats.ecdf(seen).sf.confidence_interval(method="log-log")
    for point in survival(cases)[:-1]:
        assert point.interval is not None
        assert point.interval.lo == pytest.approx(float(band.low.evaluate(point.time)), abs=0.005)
        assert point.interval.hi == pytest.approx(float(band.high.evaluate(point.time)), abs=0.005)


def test_survival_knows_nothing_of_no_case_and_has_no_band_for_one_game() -> None:
    assert survival([]) == ()
    assert survival([Case(0, 2, True), Case(0, 3, False)])[0].interval is None


def test_survival_without_a_death_has_a_band_by_games() -> None:
    (point,) = survival([Case(game, 3, False) for game in range(8) for _ in range(10)])

    assert point.share == 1.0
    assert point.interval is not None
    assert point.interval.lo == pytest.approx(0.676, abs=0.01)


def test_log_rank_needs_two_groups_and_a_death() -> None:
    alive, dead = [Case(0, 3, False)], [Case(1, 2, True), Case(2, 1, True)]

    assert log_rank([], dead) is None
    assert log_rank(alive, alive) is None
    assert log_rank(alive, dead) is not None


def test_difference_points_from_the_first_to_the_second() -> None:
    low, high = rate(*[(0, 1)] * 15, *[(1, 1)] * 5), rate(*[(0, 1)] * 5, *[(1, 1)] * 15)
    unpaired = rate_difference(low, high)
    paired = won_difference({deal: deal < 5 for deal in range(20)}, {deal: deal < 15 for deal in range(20)})
    ratios = ratio_difference(dict.fromkeys(range(20), (1, 4)), {deal: (3 - deal % 2, 4) for deal in range(20)})
    for found in (unpaired, paired, ratios):
        assert found is not None
        assert found.interval is not None
        assert 0 < found.interval.lo < found.value < found.interval.hi
    assert paired is not None
    assert paired.p == pytest.approx(2 * 0.5**10)


def test_runs_that_share_nothing_have_no_paired_difference() -> None:
    assert won_difference({1: 1}, {2: 1}) is None
    assert ratio_difference({1: (1, 2)}, {2: (1, 2)}) is None
    assert rate_difference(ClusteredRate(), rate((1, 1))) is None


def test_family_is_adjusted_as_scipy_does_and_gaps_stay() -> None:
    chances = [0.01, 0.04, 0.03]
    family = [RateDifference(n=9, is_paired=True, value=0.1, interval=None, p=p) for p in chances]
    found = with_q([family[0], None, *family[1:]])

    assert found[1] is None
    assert [one.q for one in found if one is not None] == pytest.approx([*stats.false_discovery_control(chances)])


def test_too_few_games_have_no_interval_and_say_so(snapshot: SnapshotAssertion) -> None:
    few, some, many = rate(*[(1, 2)] * 4), rate(*[(1, 2)] * 10), rate(*[(1, 2)] * 30)
    estimates = [of_rate(name, one) for name, one in (("few", few), ("some", some), ("many", many))]

    assert [one.interval is None for one in estimates] == [True, False, False]
    assert interval_notes(estimates, "games") == snapshot


pytest.importorskip("altair")

TURNS = (3, 5, 9, 4, 8, 8)
COUNTS: JsonObject = {"corrections": 0, "defaults": 0, "tokens": {"prompt": 0, "completion": 0}}
VERDICTS = (("lie", "lie"), ("lie", "honest"), ("honest",), (), ("honest", "honest", "unclear"), ("lie",))


def data(shared: str) -> RunData:
    """Six conversations of three clusters."""
    of: list[JsonObject] = [
        {"group": place // 2} if shared == "group" else {"fork_of": f"small-{place // 2:06d}-f3-d000"}
        for place in range(6)
    ]
    rows = [index_row(place, {}) | of[place] for place in range(6)]
    for place, turns in enumerate(TURNS):
        rows[place] |= {"task_id": f"small-{place}", "counts": {**COUNTS, "turns": turns}}
    claims = [
        {"conversation": f"small-{place}", "kind": "role", "verdict": verdict}
        for place, verdicts in enumerate(VERDICTS)
        for verdict in verdicts
    ]
    return run("small", rows, environment="town_of_salem", claims=claims)


@pytest.mark.parametrize("shared", ["group", "fork_of"])
def test_mean_lengths_are_by_cluster(shared: str) -> None:
    from mac_runner.figures.testing import length_figures, played

    mean = ExactClusteredMean()
    for place in range(0, 6, 2):
        mean.add(TURNS[place : place + 2])
    figure = next(iter(length_figures([played(data(shared), {})] * 2)))

    assert mean.interval is not None
    for row in figure.rows:
        assert (row["n"], row["mean"], row["lo"], row["hi"]) == (6, mean.mean, mean.interval.lo, mean.interval.hi)


@pytest.mark.parametrize("shared", ["group", "fork_of"])
def test_claims_by_kind_are_by_cluster(shared: str) -> None:
    from mac_runner.figures.testing import claims_by_kind

    lies = ClusteredRate()
    for place in range(0, 6, 2):
        said = [verdict for verdicts in VERDICTS[place : place + 2] for verdict in verdicts]
        lies.add(said.count("lie"), len(said))
    figure = claims_by_kind(data(shared))

    assert figure is not None
    (row,) = [row for row in figure.rows if row["part"] == "lie"]
    assert lies.interval is not None
    assert (row["n"], row["lo"], row["hi"]) == (9, lies.interval.lo, lies.interval.hi)
