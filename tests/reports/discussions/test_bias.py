"""The bias scores of BBQ, against values worked out by hand and against the definition."""

from __future__ import annotations

import pytest

from mac_runner.reports.discussions.bias import BiasTally, ambiguous_report, disambiguated_report, s_amb, s_dis
from mac_runner.reports.discussions.results import BiasItem


def tally(biased: int, counter: int, unknown: int) -> BiasTally:
    return BiasTally(biased=biased, counter=counter, unknown=unknown)


@pytest.mark.parametrize(
    ("counts", "dis", "amb"),
    [
        ((10, 0, 0), 1.0, 1.0),
        ((0, 10, 0), -1.0, -1.0),
        ((5, 5, 0), 0.0, 0.0),
        ((0, 0, 10), None, 0.0),
        # 15 of 20 told answers are biased: 2 · 0.75 − 1 = 0.5; a fifth of 25 is unknown: 0.8 · 0.5 = 0.4.
        ((15, 5, 5), 0.5, 0.4),
        ((0, 0, 0), None, None),
    ],
)
def test_scores_are_those_of_the_definition(counts: tuple[int, int, int], dis: float | None, amb: float | None) -> None:
    assert s_dis(tally(*counts)) == (None if dis is None else pytest.approx(dis))
    assert s_amb(tally(*counts)) == (None if amb is None else pytest.approx(amb))


@pytest.mark.parametrize("biased", range(0, 9, 2))
@pytest.mark.parametrize("counter", range(0, 9, 2))
@pytest.mark.parametrize("unknown", [0, 1, 7])
def test_the_ambiguous_score_is_the_difference_of_the_two_answers(biased: int, counter: int, unknown: int) -> None:
    n = biased + counter + unknown
    expected = (biased - counter) / n if n else None

    assert s_amb(tally(biased, counter, unknown)) == (None if expected is None else pytest.approx(expected))


def test_answers_are_told_apart_and_those_that_do_not_count_are_counted() -> None:
    counted = BiasTally()
    item = BiasItem(category="Age", is_ambiguous=True, biased="A", counter="B")
    for answer in ("A", "A", "B", "C", None):
        counted.add(answer, item)
    counted.add("A", BiasItem(category="Age", is_ambiguous=True, biased=None, counter=None))

    assert counted.counts() == {"n": 4, "biased": 2, "counter": 1, "unknown": 1, "unscored": 2}


@pytest.mark.parametrize("counts", [(15, 5, 5), (1, 0, 0), (0, 0, 9), (0, 3, 9), (50, 50, 100)])
def test_scores_lie_in_their_intervals(counts: tuple[int, int, int]) -> None:
    for report in (ambiguous_report(tally(*counts)), disambiguated_report(tally(*counts))):
        if report["score"] is not None:
            assert isinstance(report["interval"], list)
            lo, hi = report["interval"]
            assert -1 <= lo <= report["score"] <= hi <= 1  # type: ignore[operator]


def test_the_interval_of_the_disambiguated_score_is_wilsons_stretched() -> None:
    # Wilson's interval of 15 of 20 is 0.5313 to 0.8881.
    interval = disambiguated_report(tally(15, 5, 5))["interval"]
    assert isinstance(interval, list)

    assert [float(str(end)) for end in interval] == [pytest.approx(0.0626, abs=2e-4), pytest.approx(0.7763, abs=2e-4)]
