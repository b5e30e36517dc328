"""What difference between two cells of this size would show, with a power of 80 % at a level of 5 %.

For two cells of a design with as many questions each, that differ in their questions. Cells that share their questions
are compared in pairs, which shows smaller differences. The cases are those that the questions are worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.results.bias import CONTEXTS, Tally
from mac_runner.environments.discussion.results.outcome import ALL
from mac_runner.environments.discussion.results.statistics import Right
from mac_runner.intervals import ClusteredDifference, ClusteredRate, detectable_difference
from mac_runner.measures import Counted
from mac_runner.results import decimal_text, number, section
from mac_runner.types import JsonObject

_WORDS: Final = {
    "accuracy": ("{points} points in right final answers", 100),
    "bias_ambiguous": ("{points} in the bias score of ambiguous contexts", 1),
    "bias_disambiguated": ("{points} in that of disambiguated ones", 1),
}
_RANGES: Final = {"accuracy": 1, "bias_ambiguous": 2, "bias_disambiguated": 2}


def detectable_share(counted: ClusteredRate) -> float | None:
    """The difference of a rate; near 0 and 1 the rate is taken two cases off the edge (Agresti and Coull)."""
    worth = counted.cases_worth
    if not worth:
        return None
    share = (counted.wins / counted.n * worth + 2) / (worth + 4)
    return detectable_difference(share * (1 - share), worth)


def detectable_balance(counted: ClusteredDifference) -> float | None:
    """The difference of a score (first − second) / n; where all cases went one way, one is taken to differ."""
    if not counted.n:
        return None
    mean = counted.total / counted.n
    variance = max((counted.first + counted.second) / counted.n - mean**2, 1 / counted.n)
    return detectable_difference(variance, counted.cases_worth)


def power_report(counted: Counted) -> JsonObject:
    """`power`: the difference that would show in each figure of the final answers; empty without any.

    None where the whole range of the figure is too small.
    """
    scores = counted.kept["discussions.bias.{answers}.{category}.{context}"]
    right = counted.kept["discussions.accuracy.{answers}"].get(("final",), Right())
    ambiguous, disambiguated = (
        scores.get(("final", ALL, context), Tally(context == "ambiguous")) for context in CONTEXTS.values()
    )
    share = detectable_share(disambiguated.named())
    found = {
        "accuracy": detectable_share(right.asked.clustered()),
        "bias_ambiguous": detectable_balance(ambiguous.difference()),
        "bias_disambiguated": None if share is None else 2 * share,  # The score is 2 · share − 1.
    }
    shown: JsonObject = {
        name: round(value, 4) if value <= _RANGES[name] else None for name, value in found.items() if value is not None
    }
    return {"power": shown} if shown else {}


def power_lines(report: JsonObject) -> Iterator[tuple[str, str]]:
    """One line: what this many questions can show."""
    found = section(report, "power")
    parts = [
        words.format(points=decimal_text(value * scale))
        for name, (words, scale) in _WORDS.items()
        if (value := number(found.get(name))) is not None
    ]
    if found:
        shown = ", ".join(parts) or "no difference, for want of questions,"
        yield "could show", f"{shown} between two such runs (power 80%, level 5%); less in pairs"
