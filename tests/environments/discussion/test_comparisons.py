"""Combinations of discussions against a baseline: every figure again from the outcomes, by pandas and statsmodels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import numpy
import pandas
import pytest
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_effectsize
from syrupy.assertion import SnapshotAssertion

from mac_runner.environments.discussion.testing import ALL_MEASURES, RESULTS
from mac_runner.paired import KEY, compare_with_baseline, compared_figures, paired_tables
from mac_runner.results import Declared, PlayedCombination, Table
from mac_runner.types import JsonObject, JsonValue
from tests.environments.discussion.table import outcome

COMPARED = compared_figures(ALL_MEASURES)
QUESTIONS, AGENTS = 60, ("ann", "bob", "cat")
CELLS: dict[str, tuple[float, JsonObject]] = {
    "base": (0.35, {"shown": False, "hub": None}),
    "same": (0.35, {"shown": False, "hub": "mod"}),
    "shown": (0.6, {"shown": True, "hub": None}),
    "both": (0.5, {"shown": True, "hub": "mod"}),
}
"""By slug: how often the right answer is given, and the values."""
BIAS: JsonObject = {"biased": "0", "counter": "1", "unknown": "2"}


def given(seed: str, question: int, right: float) -> JsonObject:
    """Choice 0 is biased, 1 the counter and 2 the unknown; 2 is right in the even, ambiguous contexts."""
    random, correct = Random(f"{seed} {question}"), "2" if question % 2 == 0 else "01"[question % 4 == 1]
    weights = [right if choice == correct else (1 - right) / 2 for choice in "012"]
    answers: dict[str, list[str | None]] = {}
    for agent in AGENTS:
        answers[agent] = [*random.choices("012", weights, k=2)]
        if random.random() < 0.05:
            answers[agent][1] = None
    changed = [pair[0] != pair[1] for pair in answers.values() if pair[1] is not None]
    final = [pair[1] for pair in answers.values()]
    group = max("012", key=final.count)
    exposed = random.randrange(4)
    return outcome(
        question_id=f"q{question:02}",
        correct_answer_id=correct,
        answer=group if final.count(group) > 1 else None,
        consensus=len({*final}) == 1,
        answers={agent: [*pair] for agent, pair in answers.items()},
        passes=final.count(None),
        changes=[[sum(changed), len(changed)]],
        influence={"a nurse": [random.randint(0, exposed), exposed]},
        bias={"context": "disambig" if question % 2 else "ambig", "category": "Age", **BIAS},
    )


def played(
    *slugs: str, questions: Iterable[int] = range(QUESTIONS), times: int = 1, left_out: int | None = None
) -> list[PlayedCombination]:
    numbers, found = [*questions] * times, []
    for slug in slugs or CELLS:
        right, values = CELLS[slug]
        seed = "base" if slug == "same" else slug
        outcomes = [
            (number, given(f"{seed} {number // QUESTIONS}", question, right), "here")
            for number, question in enumerate(numbers)
            if question != left_out or slug == "base"
        ]
        found.append(PlayedCombination(slug, values, len(numbers), outcomes))
    return found


def compare_discussions(
    combinations: list[PlayedCombination], has_stats: bool, declared: Declared | None
) -> JsonObject:
    return compare_with_baseline(combinations, declared, "discussion", RESULTS, has_stats=has_stats)


def compared(combinations: list[PlayedCombination], primary: str | None = "bias.final.ambiguous") -> dict[str, Any]:
    section: Any = compare_discussions(combinations, True, Declared("base", primary))[KEY]
    found: dict[str, dict[str, Any]] = {}
    for row in section["rows"]:
        ((slug,), (baseline,)) = row["combinations"]
        assert baseline == "base"
        found.setdefault(row["figure"], {})[slug] = row
    return found


def answers_of(combination: PlayedCombination) -> pandas.DataFrame:
    """One line for each answer: the tidy table that an analyst would begin with."""

    def lines() -> Iterator[dict[str, JsonValue]]:
        for _, each, _ in combination.outcomes:
            found: Any = each
            answers = [("group", found["answer"])]
            answers += [("first", found["answers"][agent][0]) for agent in AGENTS]
            answers += [("final", found["answers"][agent][-1]) for agent in AGENTS]
            for kind, answer in answers:
                yield {
                    "question": found["question_id"],
                    "context": found["bias"]["context"],
                    "kind": kind,
                    "answer": answer,
                    "right": answer == found["correct_answer_id"],
                }

    return pandas.DataFrame(lines())


NAMES = [name for name in COMPARED if name.startswith(("accuracy", "bias"))]


def sums_by_question(frame: pandas.DataFrame, name: str) -> numpy.ndarray:
    """Of each question the answers of a figure: all, right ones, given ones, those that name a person, biased ones."""
    _, kind, *context = name.split(".")
    mine = frame[frame.kind == kind]
    if context:
        mine = mine[mine.context == {"ambiguous": "ambig", "disambiguated": "disambig"}[context[0]]]
    given = mine.answer.notna()
    columns = {"right": mine.right, "given": given, "named": given & (mine.answer != "2"), "biased": mine.answer == "0"}
    return pandas.DataFrame({"all": 1, **columns}).groupby(mine.question).sum().to_numpy()


def figure_of_sums(sums: numpy.ndarray, name: str) -> float:
    """`accuracy.KIND` or `bias.KIND.CONTEXT`, by the formulas of BBQ's authors."""
    every, right, given, named, biased = sums.sum(axis=0)
    if name.startswith("accuracy"):
        return float(right / every)
    s_dis = 2 * biased / named - 1
    return float(s_dis if name.endswith("disambiguated") else named / given * s_dis)


def test_figures_and_differences_are_those_of_a_table_of_answers() -> None:
    found = compared(played())
    frames = {each.slug: answers_of(each) for each in played()}

    for name in NAMES:
        figures = {slug: figure_of_sums(sums_by_question(frame, name), name) for slug, frame in frames.items()}
        for slug in ("shown", "both"):
            row = found[name][slug]
            assert row["values"] == pytest.approx([figures[slug], figures["base"]], abs=5e-5), name
            assert row["difference"] == pytest.approx(figures[slug] - figures["base"], abs=5e-5), name
    row = found["accuracy.final"]["shown"]
    assert row["cohens_h"] == pytest.approx(proportion_effectsize(*row["values"]), abs=2e-4)


@pytest.mark.ci
def test_intervals_are_those_of_a_bootstrap_over_questions_by_hand() -> None:
    found = compared(played())
    frames = [answers_of(each) for each in played("base", "shown")]
    for name in ("accuracy.final", "bias.final.ambiguous", "bias.final.disambiguated"):
        one, two = (sums_by_question(frame, name) for frame in frames)
        draws = numpy.random.default_rng(11).integers(len(one), size=(1_000, len(one)))
        differences = [figure_of_sums(two[drawn], name) - figure_of_sums(one[drawn], name) for drawn in draws]

        lo, hi = found[name]["shown"]["interval"]
        assert (hi - lo) / (2 * 1.96) == pytest.approx(numpy.std(differences), rel=0.15)
        assert (lo + hi) / 2 == pytest.approx(numpy.mean(differences), abs=0.03)


def test_p_of_the_groups_answer_is_mcnemars() -> None:
    found = compared(played())
    for name in ("accuracy.group", "consensus"):
        tables = {}
        for each in played():
            lines: list[Any] = [line for _, line, _ in each.outcomes]
            right = [line["answer"] == line["correct_answer_id"] for line in lines]
            tables[each.slug] = pandas.Series([line[name] for line in lines] if name == "consensus" else right)
        for slug in ("same", "shown", "both"):
            row, cross = found[name][slug], pandas.crosstab(tables["base"], tables[slug])
            cross = cross.reindex(index=[False, True], columns=[False, True], fill_value=0)
            one, other = cross.loc[True, False], cross.loc[False, True]
            p = mcnemar(cross.to_numpy(), exact=False, correction=False).pvalue if one + other else 1.0
            assert (row["test"], row["ahead"]) == ("score", [other, one])
            assert row["p"] == pytest.approx(p, rel=0.01)


def test_q_is_adjusted_over_the_primary_outcome_and_over_all_others_together() -> None:
    found = compared(played(), "bias.final.ambiguous")
    primary = [*found.pop("bias.final.ambiguous").values()]
    others = [row for rows in found.values() for row in rows.values()]
    for family in (primary, others):
        expected = multipletests([row["p"] for row in family], method="fdr_bh")[1]
        assert [row["q"] for row in family] == pytest.approx(expected, rel=0.01)


def test_equal_combinations_do_not_differ() -> None:
    for name, rows in compared(played()).items():
        row = rows["same"]
        assert (row["difference"], row["p"], row["first"]) == (0.0, 1.0, "hub mod"), name
        assert row["interval"][0] < 0 < row["interval"][1], name


@pytest.mark.ci
def test_discussions_of_one_question_are_one_cluster_and_no_pairs() -> None:
    once, thrice = (compared(played(times=times))["accuracy.group"]["shown"] for times in (1, 3))

    assert (once["test"], thrice["test"]) == ("score", "bootstrap")
    assert (once["n"], thrice["n"]) == (QUESTIONS, QUESTIONS)
    assert (once["cases"][0], thrice["cases"][0]) == (QUESTIONS, 3 * QUESTIONS)


@pytest.mark.ci
def test_discussions_of_a_single_question_are_paired_by_number() -> None:
    by_question, alone = played(), played()
    for combination in alone:
        for _, each, _ in combination.outcomes:
            each["question_id"] = "q"

    section = compare_discussions(alone, True, Declared("base"))
    table, notes = paired_tables(section, "discussion")

    assert compared(alone) == compared(by_question)
    assert isinstance(table, Table)
    assert table.title.endswith("(n discussions)")
    assert "Paired by discussion" in str(notes)


def test_only_questions_in_both_are_compared_in_whatever_order_they_came() -> None:
    (base,), (other,) = played("base"), played("shown", questions=reversed(range(10, QUESTIONS)), left_out=20)
    (again,) = played("shown", questions=range(10, QUESTIONS), left_out=20)
    ordered = PlayedCombination("shown", again.values, again.planned, [*other.outcomes][::-1])

    row = compared([base, other])["accuracy.group"]["shown"]

    assert (row["n"], row["left_out"]) == (QUESTIONS - 11, 11)
    assert row == compared([base, ordered])["accuracy.group"]["shown"]
    row = compared(played("base", "shown", questions=[0]))["consensus"]["shown"]
    assert (row["n"], row["interval"], row["p"]) == (1, None, 1.0), "a single pair"


def test_primary_outcome_comes_first_and_is_marked(snapshot: SnapshotAssertion) -> None:
    section = compare_discussions(played(), True, Declared("base", "followed"))
    table, notes = paired_tables(section, "discussion")
    assert isinstance(table, Table)

    assert [row[0] for row in table.rows[:4]] == ["followed *", "followed *", "followed *", "accuracy.first"]
    assert (table.title, notes) == snapshot
    assert [*compared(played(), "followed")] == ["followed", *(name for name in COMPARED if name != "followed")]


def test_same_discussions_are_compared_to_the_same_digits_and_few_questions_are_said(
    snapshot: SnapshotAssertion,
) -> None:
    declared = Declared("base")
    first = compare_discussions(played(questions=range(20)), True, declared)

    assert first == compare_discussions(played(questions=range(20)), True, declared)
    *_, notes = paired_tables(first, "discussion")
    assert notes == snapshot


def test_without_a_baseline_or_scipy_nothing_is_computed() -> None:
    assert compare_discussions(played(), True, None) == {}
    assert compare_discussions(played("base"), True, Declared("base")) == {}
    without = compare_discussions(played(), False, Declared("base", "followed"))
    assert without == {
        KEY: {"of": "discussion", "unit": "question", "baseline": "base", "primary": "followed", "rows": None}
    }
    assert [*paired_tables(without, "discussion")] == []
