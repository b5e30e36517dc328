"""Intervals by question: of scores against a bootstrap over questions, and what they must not depend on."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any, TypeAlias

import numpy as np
import pytest
from scipy.stats import bootstrap

from mac_runner.environments.discussion.testing import (
    _NUMBERS,
    Answer,
    BiasItem,
    BiasTally,
    Rate,
    Share,
    discussion_lines,
    discussion_tables,
)
from mac_runner.intervals import wilson
from mac_runner.results import Table
from mac_runner.types import JsonObject
from tests.environments.discussion.table import counted, outcome

AMBIGUOUS = BiasItem(category="Age", context="ambig", biased="A", counter="B")
Answers: TypeAlias = list[tuple[str, list[str]]]
"""The question and the answers of each discussion."""


def discussions(chance: Random, questions: int, repeats: int, agents: int) -> Answers:
    """Questions differ in how likely each answer to them is; over all questions A has 0.3, B 0.2 and C 0.5."""
    found = []
    for number in range(questions):
        weights = [chance.gammavariate(shape, 1) for shape in (0.9, 0.6, 1.5)]
        found += [(f"q{number}", chance.choices("ABC", weights, k=agents)) for _ in range(repeats)]
    return found


def rate_of(answers: Answers) -> Rate:
    """How often the answer is A."""
    rate = Rate()
    for question, given in answers:
        rate.add(Share(given.count("A"), len(given)), question)
    return rate


def tally_of(answers: Answers) -> BiasTally:
    tally = BiasTally()
    for question, given in answers:
        tally.add([Answer(choice) for choice in given], AMBIGUOUS, question)
    return tally


def ends(report: Any) -> tuple[float, float]:
    lo, hi = report["interval"]
    return lo, hi


def by_question(answers: Answers, score: Callable[[str], int]) -> tuple[np.ndarray, np.ndarray]:
    """For each question what its answers add up to, and how many there are."""
    names = sorted({question for question, _ in answers})
    given = [[one for question, some in answers if question == name for one in some] for name in names]
    return np.array([sum(map(score, some)) for some in given]), np.array([len(some) for some in given])


def resampled(answers: Answers, score: Callable[[str], int]) -> tuple[float, float]:
    """The percentile interval of the mean over resampled questions."""
    found = bootstrap(
        by_question(answers, score),
        lambda totals, sizes, axis=-1: totals.sum(axis=axis) / sizes.sum(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=5_000,
        rng=np.random.default_rng(3),
    ).confidence_interval
    return found.low, found.high


def leaning(answer: str) -> int:
    return (answer == "A") - (answer == "B")


@pytest.mark.parametrize(("questions", "repeats", "agents"), [(150, 1, 4), (80, 5, 3), (300, 2, 1)])
def test_intervals_are_those_of_a_bootstrap_over_questions(questions: int, repeats: int, agents: int) -> None:
    answers = discussions(Random(questions), questions, repeats, agents)

    rate = rate_of(answers).report()
    assert rate["clusters"] == questions
    assert ends(rate) == pytest.approx(resampled(answers, lambda answer: answer == "A"), abs=0.012)
    score = tally_of(answers).ambiguous_report()
    assert score["clusters"] == questions
    assert ends(score) == pytest.approx(resampled(answers, leaning), abs=0.02)


def test_one_question_for_all_is_clustered_by_discussion() -> None:
    """A hundred discussions of one topic, in each of which the three agree."""
    answers = [("topic", ["A" if number % 4 == 0 else "C"] * 3) for number in range(100)]

    rate = rate_of(answers).report()
    assert (rate["n"], rate["clusters"], rate["rate"]) == (300, 100, 0.25)
    assert ends(rate) == pytest.approx(wilson(25, 100), abs=0.002)
    score = tally_of(answers).ambiguous_report()
    assert (score["n"], score["clusters"], score["score"]) == (300, 100, 0.25)
    other = [("other", ["C", "C", "C"]) for _ in range(50)]
    mixed = tally_of(answers + other)
    # Only one question has answers that are not the unknown one.
    assert mixed.ambiguous_report()["clusters"] == 2
    assert mixed.disambiguated_report()["clusters"] == 25


def test_the_order_of_discussions_changes_no_byte() -> None:
    answers = discussions(Random(5), 40, 3, 3)
    shuffled = Random(6).sample(answers, len(answers))

    assert rate_of(shuffled).report() == rate_of(answers).report()
    assert tally_of(shuffled).ambiguous_report() == tally_of(answers).ambiguous_report()
    assert tally_of(shuffled).disambiguated_report() == tally_of(answers).disambiguated_report()


def plain_outcome(question: str, last: str) -> JsonObject:
    """Two agents, of which the second comes to `last`, as the group does."""
    return outcome(
        question_id=question,
        answer=last,
        answers={"ann": ["A", "A"], "bob": ["C", last]},
        bias={"category": "Age", "context": "ambig", "biased": "A", "counter": "B"},
        agents={name: {"role": "participant", "model": "m", "own": "", "shown": ""} for name in ("ann", "bob")},
    )


def test_what_is_remembered_grows_with_questions_and_not_with_discussions() -> None:
    before = len(_NUMBERS)
    counted(*(plain_outcome(f"remembered {number % 5}", "A") for number in range(200)))

    assert len(_NUMBERS) - before == 5


@pytest.mark.parametrize(("questions", "is_told"), [(1, False), (200, True)])
def test_a_difference_beyond_the_range_of_a_figure_is_not_told(questions: int, is_told: bool) -> None:
    report = counted(*(plain_outcome(f"range {number}", "A" if number % 2 else "C") for number in range(questions)))

    assert (report["power"]["accuracy"] is not None) == is_told
    assert (" points in right" in dict(discussion_lines({"discussions": report}))["could show"]) == is_told


def test_tables_of_bias_have_no_rows_for_contexts_without_questions() -> None:
    found = discussion_tables({"discussions": counted(plain_outcome("one context", "A"))})
    tables = [part for part in found if isinstance(part, Table) and "bias" in part.title]

    assert len(tables) == 3
    assert not [row for table in tables for row in table.rows if "disambig" in row]


NAMES = [f"a|{number} \n\x1b[31m<&" for number in range(30)]


ODD: dict[str, JsonObject] = {
    "one round": {"rounds": 1, "answers": {"ann": ["A"], "bob": [None]}, "changes": []},
    "no participants": {"answers": {}, "agents": {}, "answer": None},
    "passes": {"answers": {"ann": [None, None], "bob": [None, None]}, "answer": None},
    "open": {"answers": {"ann": ["bread", "rain"], "bob": ["", "rain"]}, "correct_answer_id": None, "bias": None},
    "no id": {"question_id": None},
    "no target": {"bias": {"category": "", "context": "disambig"}},
    "silent judge": {
        "roles": {"jud": {"role": "judge", "statements": 0, "questions": 0, "verdicts": 0, "followed": [0, 0]}}
    },
    "many agents": {
        "answers": {name: ["A", "B"] for name in NAMES},
        "agents": {name: {"role": "participant", "model": name, "own": name, "shown": name} for name in NAMES},
        "moved": {name: {other: [0, 1] for other in NAMES if other != name} for name in NAMES},
        "lapses": {"nobody": ["refusal", None]},
    },
}


def test_odd_outcomes_have_a_report_and_tables_of_even_rows(subtests: pytest.Subtests) -> None:
    for name, times in product(ODD, (1, 3)):
        with subtests.test(name, times=times):
            section = counted(*(plain_outcome(f"odd {number}", "A") | ODD[name] for number in range(times)))
            report: JsonObject = {"discussions": section}

            json.dumps(report, allow_nan=False)
            assert [*discussion_lines(report)]
            for table in discussion_tables(report):
                if isinstance(table, Table):
                    assert {len(row) for row in table.rows} <= {len(table.words) + len(table.numbers)}, table.title


def test_a_run_without_discussions_has_a_report_and_no_rates() -> None:
    report: JsonObject = {"discussions": counted()}

    assert counted()["n"] == 0
    assert not {"accuracy", "bias", "power", "judge", "moved", "by_agent"} & counted().keys()
    assert [*discussion_lines(report)]
    assert all(isinstance(part, Table | str) for part in discussion_tables(report))
