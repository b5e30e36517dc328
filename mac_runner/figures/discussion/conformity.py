"""Whether participants go over to the answer that most others gave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from mac_runner.environments.discussion.results.outcome import DiscussionResult, Share
from mac_runner.environments.discussion.results.rates import Rate
from mac_runner.figures.data import RunData
from mac_runner.figures.discussion.rates import cases, rate_columns, rate_methods, rate_row
from mac_runner.figures.model import Figure
from mac_runner.figures.plots import forest
from mac_runner.results import parsed

_PLACES: Final = {
    "alone": "alone against the majority",
    "some": "against the majority, with others",
    "with": "with the majority",
}
_OTHERS_MIN: Final = 2


def conformity_figure(data: RunData) -> Figure | None:
    """How often an answer changes, by how many others gave it; None where no participant had two others to read."""
    rates = {place: Rate() for place in _PLACES}
    for ended in data.ended():
        if ended.outcome is not None:
            result = parsed(DiscussionResult, ended.outcome, f"the index row of {ended.task_id!r}, outcome")
            counts: Counter[tuple[str, bool]] = Counter(_changes(result))
            for place, found in rates.items():
                changed = counts[place, True]
                found.add(Share(changed, changed + counts[place, False]), result.question_id)
    rows = [rate_row(rates[place].report(), place=words) for place, words in _PLACES.items() if rates[place].n]
    if not rows:
        return None
    return Figure(
        id="conformity",
        title="Do participants go over to the answer of the majority?",
        caption="How often an answer was changed in the next round: to the answer of the majority by those against "
        "it, to any other by those with it. The majority is the answer that more of the others gave than any other; "
        "it is counted whether or not a participant could read all of them.",
        n=cases(rows),
        unit="answers",
        columns=rate_columns(("place", "own answer"), value="changed", kind="rate"),
        rows=tuple(rows),
        spec=forest(rows, label="place", unit="rate", title="changed in the next round", units="questions"),
        methods=rate_methods(rows),
    )


def _changes(result: DiscussionResult) -> Iterator[tuple[str, bool]]:
    """For each participant and round but the last: where it stood, and whether it changed."""
    for agent, given in result.answers.items():
        others = [answers for name, answers in result.answers.items() if name != agent]
        for number, (own, after) in enumerate(pairwise(given)):
            held = [answers[number] for answers in others if answers[number] is not None]
            if own is None or after is None or len(held) < _OTHERS_MIN:
                continue
            if (majority := _majority(held)) is None:
                continue
            if own == majority:
                yield "with", after != own
            else:
                yield ("some" if own in held else "alone"), after == majority


def _majority(answers: Sequence[str | None]) -> str | None:
    """The answer that more gave than any other; None for a tie."""
    first, *rest = Counter(answers).most_common(2)
    return None if rest and rest[0][1] == first[1] else first[0]
