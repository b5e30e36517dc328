"""Figures of discussions that the files of a grid have and its printed table has no room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mac_runner.environments.discussion.results.outcome import ALL
from mac_runner.results import Figure, figure, integer, rate, section
from mac_runner.types import JsonObject, JsonValue

CASES: Mapping[str, tuple[str, ...]] = {"ambiguous": ("n",), "disambiguated": ("biased", "counter")}
"""The counts that a bias score is on. Answers that it cannot be known count in the ambiguous one alone."""


def further_figures(report: JsonObject) -> Iterator[tuple[str, Figure | None]]:
    """Changes and answers taken over, the bias scores of each category, and the answers without a score."""
    yield "changes", _sum(section(report, "changes_by_round"))
    yield "followed", _sum(section(report, "followed_by_identity"))
    bias = section(report, "bias")
    for kind in bias:
        by_category = section(bias, kind)
        for category in by_category:
            if category != ALL:
                scores = section(by_category, category)
                for context in scores:
                    score = figure(section(scores, context), cases=CASES[context], is_headline=False)
                    yield f"bias.{kind}.{context}.{category}", score
        yield f"unscored.{kind}", _unscored(section(by_category, ALL))


def _sum(rates: Mapping[str, JsonValue]) -> Figure | None:
    """All rates as one; None where there was none."""
    found = [each for each in rates.values() if isinstance(each, dict)]
    return _rate(*(sum(integer(each.get(key)) or 0 for each in found) for key in ("count", "n")))


def _unscored(scores: JsonObject) -> Figure | None:
    counts = [section(scores, context) for context in scores]
    unscored, scored = (sum(integer(each.get(key)) or 0 for each in counts) for key in ("unscored", "n"))
    return _rate(unscored, unscored + scored)


def _rate(count: int, n: int) -> Figure | None:
    return figure({"n": n, **rate(count, n)}, is_headline=False) if n else None
