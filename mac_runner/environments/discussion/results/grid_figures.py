"""Figures of discussions that the files of a grid have and its printed table has no room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mac_runner.environments.discussion.results.outcome import ALL
from mac_runner.results import Figure, figure, integer, section
from mac_runner.types import JsonObject

CASES: Mapping[str, tuple[str, ...]] = {"ambiguous": ("n",), "disambiguated": ("biased", "counter")}
"""The counts that a bias score is on. Answers that it cannot be known count in the ambiguous one alone."""


def further_figures(report: JsonObject) -> Iterator[tuple[str, Figure | None]]:
    """Changes and answers taken over, the bias scores of each category, and the answers without a score."""
    yield "changes", _printed(figure(section(report, "changes"), is_headline=False))
    yield "followed", _printed(figure(section(report, "followed"), is_headline=False))
    bias = section(report, "bias")
    for kind in bias:
        by_category = section(bias, kind)
        for category in by_category:
            if category != ALL:
                scores = section(by_category, category)
                for context in scores:
                    score = figure(section(scores, context), cases=CASES[context], is_headline=False)
                    yield f"bias.{kind}.{context}.{category}", _printed(score) if kind == "group" else score
        unscored = _unscored(section(by_category, ALL))
        yield f"unscored.{kind}", _printed(unscored) if kind == "group" else unscored


def _printed(found: Figure | None) -> Figure | None:
    return None if found is None else found._replace(is_printed=True)


def _unscored(scores: JsonObject) -> Figure | None:
    """The share of answers without a score. It is what it is: an interval would say nothing."""
    counts = [section(scores, context) for context in scores]
    unscored, scored = (sum(integer(each.get(key)) or 0 for each in counts) for key in ("unscored", "n"))
    asked = unscored + scored
    return Figure(asked, round(unscored / asked, 4), None, None, "rate", is_headline=False) if asked else None
