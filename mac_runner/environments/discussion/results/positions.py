"""Answers by the place at which their choice was listed.

With `choice_order: permuted` the places of an answer are drawn by lot, so a place that is chosen more often than others
shows a preference for the place. With `as_given` the places are those of the file, and the two cannot be distinguished.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.results.outcome import DiscussionResult, Share
from mac_runner.environments.discussion.results.rates import Rate, reports
from mac_runner.results import RATE_HEADS, Table, count_text, percent_text, rate_texts, section
from mac_runner.types import JsonObject

SECTION: Final = "discussion_positions"
_KINDS: Final = ("first", "final")
_TITLE: Final = "answers by the place of the choice (a preference for a place shows only with choice_order: permuted)"


class PositionResults:
    """Counts for each place how often it was chosen, and how often answers were right that belonged there."""

    def __init__(self) -> None:
        self._chosen: dict[str, defaultdict[int, Rate]] = {kind: defaultdict(Rate) for kind in _KINDS}
        self._right: dict[str, defaultdict[int, Rate]] = {kind: defaultdict(Rate) for kind in _KINDS}

    def add(self, result: DiscussionResult) -> None:
        """Count the answers of one discussion; passes choose no place, and are not right."""
        order = result.order
        for kind in _KINDS if order else ():
            answers = list(result.of_kind(kind))
            given = [answer for answer in answers if answer is not None]
            for place, choice in enumerate(order, 1):
                self._chosen[kind][place].add(Share(given.count(choice), len(given)), result.question_id)
                if choice == result.correct_answer_id:
                    self._right[kind][place].add(Share(answers.count(choice), len(answers)), result.question_id)

    def report(self) -> JsonObject:
        """`discussion_positions`: for each kind of answer and place the rates `chosen` and `right`."""
        if not any(self._chosen.values()):
            return {}
        return {
            SECTION: {
                kind: {"chosen": reports(self._chosen[kind]), "right": reports(self._right[kind])} for kind in _KINDS
            }
        }


def position_tables(summary: JsonObject) -> Iterator[Table]:
    """One table: a row for each kind of answer and place."""
    report = section(summary, SECTION)
    kinds = {kind: section(report, kind) for kind in report}
    rows = [_row(counted, kind, place) for kind, counted in kinds.items() for place in section(counted, "chosen")]
    if rows:
        numbers = ("n", "chosen", *RATE_HEADS, "right answer here", "right", "rate right")
        yield Table(_TITLE, ("answers", "place"), numbers, rows)


def _row(counted: JsonObject, kind: str, place: str) -> tuple[str, ...]:
    chosen, right = section(section(counted, "chosen"), place), section(section(counted, "right"), place)
    return (
        kind,
        place,
        *(count_text(chosen.get(key)) for key in ("n", "count")),
        *rate_texts(chosen),
        *(count_text(right.get(key)) for key in ("n", "count")),
        percent_text(right.get("rate")),
    )
