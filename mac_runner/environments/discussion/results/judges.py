"""The judge's verdict beside the majority of the participants' last answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mac_runner.environments.discussion.results.outcome import DiscussionResult, Share
from mac_runner.environments.discussion.results.rates import Rate
from mac_runner.environments.discussion.state import majority, same
from mac_runner.results import RATE_HEADS, Table, count_text, integer, rate_texts, section
from mac_runner.types import JsonObject

_SECTION: Final = "judge"
_RATES: Final = {
    "agrees": "verdict is the majority's answer",
    "right": "verdict is right",
    "majority_right": "majority is right, where there is a verdict",
}


class JudgeResults:
    """Counts discussions with a verdict, one by one."""

    def __init__(self) -> None:
        self._rates = {name: Rate() for name in _RATES}
        self._verdicts = self._undecided = self._corrected = self._spoiled = 0

    def add(self, result: DiscussionResult) -> None:
        """Count one discussion. Where the participants are divided there is no majority to compare with."""
        verdict, question = result.verdict, result.question_id
        if verdict is None:
            return
        self._verdicts += 1
        held = majority({agent: given[-1] for agent, given in result.answers.items() if given})
        if held is None:
            self._undecided += 1
        else:
            self._rates["agrees"].add(Share(int(same(verdict) == same(held)), 1), question)
        if (correct := result.correct_answer_id) is not None:
            is_right, was_right = verdict == correct, held == correct
            self._rates["right"].add(Share(int(is_right), 1), question)
            if held is not None:
                self._rates["majority_right"].add(Share(int(was_right), 1), question)
                self._corrected += is_right and not was_right
                self._spoiled += was_right and not is_right

    def report(self) -> JsonObject:
        """`judge`: the rates, and how often a verdict put a majority right, or wrong."""
        if not self._verdicts:
            return {}
        return {
            _SECTION: {
                "verdicts": self._verdicts,
                "without_majority": self._undecided,
                **{name: rate.report() for name, rate in self._rates.items() if rate.n},
                "right_against_majority": self._corrected,
                "wrong_against_majority": self._spoiled,
            }
        }


def judge_tables(report: JsonObject) -> Iterator[Table | str]:
    """The rates as a table, and the verdicts against a majority as a note."""
    judge = section(report, _SECTION)
    if not judge:
        return
    rows = [
        (words, *(count_text(rate.get(key)) for key in ("n", "clusters", "count")), *rate_texts(rate))
        for name, words in _RATES.items()
        if (rate := section(judge, name))
    ]
    yield Table("judge and majority", ("",), ("n", "clusters", "count", *RATE_HEADS), rows)
    against = [integer(judge.get(f"{how}_against_majority")) or 0 for how in ("right", "wrong")]
    if any(against):
        right, wrong = against
        yield f"Verdicts against the majority: {right} right where it was wrong, {wrong} wrong where it was right."
