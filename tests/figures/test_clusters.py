"""Conversations of one deal, and forks of one conversation, are one cluster in the figures of a run."""

from __future__ import annotations

import pytest

from mac_runner.figures.testing import RunData
from mac_runner.intervals import ClusteredRate, ExactClusteredMean
from mac_runner.types import JsonObject
from tests.figures.reports import index_row, run

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
