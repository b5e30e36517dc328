"""The night's report is honest: how much was played, what did not hold, and how to see it again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

import pytest

from tests import nightly
from tests.nightly import FIGURES, Figure, Seen, chunks, report, row, see
from tests.sim import storm

T = TypeVar("T")
P = ParamSpec("P")


class Here(Executor):
    """Plays in this process, at once."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def figure(promised: int) -> Figure:
    return Figure(id="C1", what="storms", kind="storm", promised=promised, share=1.0, first=7)


def test_figure_is_played_to_the_last_seed_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    monkeypatch.setattr(storm, "play", seeds.append)
    seen = see(figure(120), Here(), 1, 100.0)

    assert seeds == list(range(7, 127))
    assert (seen.played, seen.violations) == (120, [])
    assert "ok" in row(figure(120), seen)


def test_figure_without_time_left_says_that_it_was_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm, "play", lambda seed: pytest.fail("it was played"))
    seen = see(figure(120), Here(), 1, 0.0)

    assert seen.played == 0
    assert "not begun" in row(figure(120), seen)


def test_figure_that_was_cut_short_is_not_called_ok() -> None:
    assert "ok so far" in row(figure(120), Seen(played=119))


def test_violation_is_told_with_its_seed_and_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: int) -> None:
        assert seed != 9, "a conversation is lost"

    monkeypatch.setattr(storm, "play", play)
    seen = see(figure(10), Here(), 1, 100.0)
    told = report([(figure(10), seen)])

    assert seen.played == 10
    assert "1 BROKEN" in told
    assert "storm 9: AssertionError: a conversation is lost" in told
    assert "again: python -m tests.sim.seeds storm 9" in told


def test_shares_are_those_of_one_night_and_seeds_are_other_than_by_day() -> None:
    assert sum(figure.share for figure in FIGURES) == pytest.approx(1.0)
    assert all(figure.first for figure in FIGURES)
    assert sum(size for _, size in chunks(FIGURES[0])) == FIGURES[0].promised
    assert nightly.CHUNK > 1
