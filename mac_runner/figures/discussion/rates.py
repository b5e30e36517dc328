"""Rates and scores of the results of discussions as rows of figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mac_runner.figures.estimates import ends_of
from mac_runner.figures.model import ColumnKind, DataColumn, Method, Value, interval_columns
from mac_runner.results import integer, number
from mac_runner.types import JsonObject

BY_QUESTION: Final = (
    "A rate over answers has Wilson's 95 % interval of as many answers as these are worth, because answers to one "
    "question go together: a question is a cluster, or a discussion where all are of one question (Korn and Graubard "
    "1998)"
)
BY_SCORE: Final = (
    "A bias score is that of BBQ (Parrish et al. 2022): (stereotyped − counter-stereotyped) of all scored answers in "
    "ambiguous contexts, and of those two alone in disambiguated ones; its 95 % interval takes a question as a cluster"
)


def rate_row(record: JsonObject, **words: Value) -> dict[str, Value]:
    """A rate or a score with its interval, and how many cases in how many clusters it is on."""
    lo, hi = ends_of(record.get("interval"))
    cases = integer(record.get("n"))
    return {
        **words,
        "n": cases,
        "clusters": integer(record.get("clusters")),
        "value": number(record.get("rate" if "rate" in record else "score")),
        "lo": lo,
        "hi": hi,
    }


def rate_columns(
    *words: tuple[str, str], value: str, kind: ColumnKind, cases: str = "answers"
) -> tuple[DataColumn, ...]:
    """The columns of such rows, behind those of words (name and head)."""
    return (
        *(DataColumn(name=name, title=title) for name, title in words),
        DataColumn(name="n", title=cases, kind="count"),
        DataColumn(name="clusters", title="clusters", kind="count"),
        DataColumn(name="value", title=value, kind=kind),
        *interval_columns(kind),
    )


def rate_methods(rows: Iterable[dict[str, Value]], *, is_score: bool = False) -> tuple[Method, ...]:
    """How the intervals of rows were made."""
    clusters = max((int(row["clusters"] or 0) for row in rows), default=0)
    statement = BY_SCORE if is_score else BY_QUESTION
    return (Method(statement=statement, unit="cluster", n=clusters, interval="clustered by question, 95 %"),)


def cases(rows: Iterable[dict[str, Value]]) -> int:
    """The most cases that any of the rows is on."""
    return max((int(row["n"] or 0) for row in rows), default=0)
