"""Which questions are asked: samples by seed, equal shares of strata, ids, refusals; and that tasks carry them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.discussion.testing import (
    DiscussionEnvironment,
    Question,
    QuestionSelection,
    SelectionError,
    repetition,
    selected,
)
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.types import JsonObject
from tests.environments.discussion.table import BUS, agent, talk

CELLS = tuple(product(("Age", "Religion"), ("ambig", "disambig")))
KEYS = ("category", "context_condition")


def question(number: int, category: str, context: str) -> Question:
    metadata: JsonObject = {"category": category, "context_condition": context, "label": number % 3}
    return replace(BUS, question_id=f"q{number}", source_metadata=metadata, source_dataset="BBQ")


BANK = tuple(question(number, *CELLS[number % 4]) for number in range(80))


def ids(bank: tuple[Question, ...] = BANK, seed: int = 1, **selection: Any) -> list[str]:
    chosen = selected(bank, QuestionSelection(files=("q.jsonl",), **selection), seed)
    return [one.question_id for one in chosen]


def strata(names: list[str]) -> Counter[tuple[str, str]]:
    return Counter(CELLS[int(name[1:]) % 4] for name in names)


def refused(bank: tuple[Question, ...] = BANK, **selection: Any) -> list[tuple[str, str]]:
    with pytest.raises(SelectionError) as fault:
        ids(bank, **selection)
    return [(".".join(map(str, problem.path)), problem.text) for problem in fault.value.problems]


def test_without_a_sample_all_questions_come_in_the_order_of_the_files() -> None:
    assert ids() == [one.question_id for one in BANK]


def test_a_sample_depends_on_the_seed_and_the_ids_and_not_on_the_order_of_the_files() -> None:
    assert ids(sample=20) == ids(sample=20, bank=BANK[::-1])
    assert ids(sample=20) != ids(sample=20, seed=2)
    assert ids(sample=30)[:20] == ids(sample=20)
    assert len(set(ids(sample=80))) == 80


def test_each_question_is_drawn_equally_often_over_the_seeds() -> None:
    counts = Counter(name for seed in range(2_000) for name in ids(sample=20, seed=seed))

    # Binomial with n = 2,000 and p = 1/4: 500 on average, with a standard deviation of 19.4.
    assert all(abs(counts[one.question_id] - 500) < 5 * 19.4 for one in BANK)


def test_strata_have_equal_shares_and_so_have_the_first_conversations() -> None:
    names = ids(sample=40, stratify=list(KEYS))

    assert set(strata(names).values()) == {10}
    assert set(strata(names[:12]).values()) == {3}


def test_what_equal_shares_leave_over_goes_to_strata_by_seed() -> None:
    more = [frozenset(strata(ids(sample=42, stratify=list(KEYS), seed=seed)).items()) for seed in range(40)]

    assert all(sorted(count for _, count in one) == [10, 10, 11, 11] for one in more)
    assert len(set(more)) > 3


def test_a_stratum_with_too_few_questions_is_refused_with_its_name_and_count() -> None:
    few = tuple(one for one in BANK if CELLS[int(one.question_id[1:]) % 4] != CELLS[3] or one.question_id == "q3")

    ((path, text),) = refused(sample=8, stratify=list(KEYS), bank=few)

    assert path == "discussion.questions.sample"
    assert "=Religion, context_condition=disambig (1)" in text
    # One of each stratum, and one more of each of the three that have more.
    assert "at most 7" in text
    for seed in range(20):
        counts = strata(ids(few, seed, sample=7, stratify=list(KEYS)))
        assert sorted(counts.values()) == [1, 2, 2, 2]


def test_a_sample_smaller_than_the_strata_or_larger_than_the_files_is_refused() -> None:
    assert "at least 4" in refused(sample=3, stratify=list(KEYS))[0][1]
    assert "hold 80 questions" in refused(sample=81)[0][1]


def test_unknown_keys_and_ids_are_refused_with_a_suggestion() -> None:
    lacking = (*BANK[:5], replace(BANK[5], source_metadata={}))

    assert refused(sample=4, stratify=["source_dataset", "categry"])[0][0] == "discussion.questions.stratify.1"
    assert "mean 'category'?" in refused(sample=4, stratify=["categry"])[0][1]
    assert "1 of 6 questions have no 'category'" in refused(sample=2, stratify=[*KEYS], bank=lacking)[0][1]
    assert [(path, "you mean" in text) for path, text in refused(ids=["q7", "q77x", "zzzz"])] == [
        ("discussion.questions.ids.1", True),
        ("discussion.questions.ids.2", False),
    ]


def test_ids_are_discussed_in_the_order_listed() -> None:
    assert ids(ids=["q7", "q2", "q30"]) == ["q7", "q2", "q30"]


def test_repeated_questions_are_counted_in_words() -> None:
    cases = {
        (150, 150): None,
        (10, 0): None,
        (200, 150): "50 questions are discussed twice",
        (151, 150): "1 question is discussed twice",
        (300, 150): "each is discussed twice",
        (350, 150): "50 questions are discussed 3 times, 100 twice",
    }
    for (conversations, questions), said in cases.items():
        told = repetition(conversations, questions)
        assert (told is None) if said is None else (told or "").endswith(f": {said}"), (conversations, questions)


@pytest.fixture
def asking() -> Experiment:
    experiment = talk(agent("ann"))
    bank = (BUS, replace(BUS, question_id="bus_2"))
    return experiment.model_copy(update={"discussion": experiment.settings_as(DiscussionConfig).with_bank(bank)})


def test_questions_are_taken_in_turn_over_and_over(asking: Experiment) -> None:
    asked = [task.material["question_id"] for task in plan_tasks(asking, None) if task.material]

    assert asked == ["bus_1", "bus_2", "bus_1"]


def test_the_same_question_again_has_another_seed(asking: Experiment) -> None:
    tasks = list(plan_tasks(asking, None))

    assert tasks[0].material == tasks[2].material
    assert tasks[0].seed != tasks[2].seed


def test_a_task_is_opened_with_its_question_alone(asking: Experiment) -> None:
    task = next(plan_tasks(asking, None))
    resolved = Experiment.model_validate(asking.model_dump(mode="json"))

    assert DiscussionEnvironment(resolved).open(task).turns()
    with pytest.raises(ConfigError, match="were not read"):
        next(plan_tasks(resolved, None))


def test_a_task_without_a_question_is_refused(asking: Experiment) -> None:
    task = replace(next(plan_tasks(asking, None)), material=None)

    with pytest.raises(ConfigError, match="has no question"):
        DiscussionEnvironment(asking).open(task)
