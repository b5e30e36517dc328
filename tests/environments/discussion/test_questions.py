"""Which questions are asked, in which order their choices are shown, and which answer follows the stereotype.

Samples are drawn by seed, in equal shares of strata. Labels go by the place shown, answers by the choice. What is
biased is told for real questions of BBQ and for data that does not say.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mac_runner.config import Experiment
from mac_runner.environments.discussion import DiscussionConfig
from mac_runner.environments.discussion.testing import (
    BiasItem,
    DiscussionConversation,
    DiscussionEnvironment,
    Question,
    QuestionSelection,
    bias_item,
    permuted,
    read_questions,
    repetition,
    selected,
    unknown_choice,
)
from mac_runner.errors import ConfigError
from mac_runner.plan import plan_tasks
from mac_runner.problems import MaterialError
from mac_runner.types import JsonObject, JsonValue
from tests.environments.discussion.table import BBQ, BUS, agent, read_by, reply, result, talk

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
    with pytest.raises(MaterialError) as fault:
        ids(bank, **selection)
    return [(".".join(map(str, problem.path)), problem.text) for problem in fault.value.problems]


def test_questions_come_in_the_order_of_the_files_as_listed_or_as_the_seed_and_the_ids_draw_them() -> None:
    assert ids() == [one.question_id for one in BANK]
    assert ids(ids=["q7", "q2", "q30"]) == ["q7", "q2", "q30"]
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
    more = [frozenset(strata(ids(sample=42, stratify=list(KEYS), seed=seed)).items()) for seed in range(40)]
    assert all(sorted(count for _, count in one) == [10, 10, 11, 11] for one in more), "what is left over goes by seed"
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


def test_samples_of_a_wrong_size_and_unknown_keys_and_ids_are_refused_with_a_suggestion() -> None:
    lacking = (*BANK[:5], replace(BANK[5], source_metadata={}))

    assert "at least 4" in refused(sample=3, stratify=list(KEYS))[0][1]
    assert "hold 80 questions" in refused(sample=81)[0][1]
    assert refused(sample=4, stratify=["source_dataset", "categry"])[0][0] == "discussion.questions.stratify.1"
    assert "mean 'category'?" in refused(sample=4, stratify=["categry"])[0][1]
    assert "1 of 6 questions have no 'category'" in refused(sample=2, stratify=[*KEYS], bank=lacking)[0][1]
    assert [(path, "you mean" in text) for path, text in refused(ids=["q7", "q77x", "zzzz"])] == [
        ("discussion.questions.ids.1", True),
        ("discussion.questions.ids.2", False),
    ]


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


def test_questions_are_taken_in_turn_over_and_over_each_time_with_another_seed() -> None:
    experiment = talk(agent("ann"))
    bank = (BUS, replace(BUS, question_id="bus_2"))
    asking = experiment.model_copy(update={"discussion": experiment.settings_as(DiscussionConfig).with_bank(bank)})
    first, second, third = plan_tasks(asking, None)
    resolved = Experiment.model_validate(asking.model_dump(mode="json"))

    assert [task.material["question_id"] for task in (first, second) if task.material] == ["bus_1", "bus_2"]
    assert first.material == third.material
    assert first.seed != third.seed
    # A task is opened with its question alone.
    assert DiscussionEnvironment(resolved).open(first).turns()
    with pytest.raises(ConfigError, match="were not read"):
        next(plan_tasks(resolved, None))
    with pytest.raises(ConfigError, match="has no question"):
        DiscussionEnvironment(asking).open(replace(first, material=None))


# The order of choices.

ASKED = replace(BUS, source_metadata=BBQ)


def panel(order: str = "permuted", **prompt: str) -> Experiment:
    asked = talk(agent("ann"), agent("bob"), max_rounds=1, prompt={"choice_order": order, **prompt})
    settings = asked.settings_as(DiscussionConfig).with_bank((ASKED,))
    conversations = asked.conversation_config.model_copy(update={"conversations": 60})
    return asked.model_copy(update={"discussion": settings, "conversation_config": conversations})


def discussions(experiment: Experiment) -> list[DiscussionConversation]:
    environment = DiscussionEnvironment(experiment)
    return [environment.open(task) for task in plan_tasks(experiment, None)]


def listed(text: str) -> list[str]:
    """The texts behind the labels A, B and C of a prompt."""
    return [line.partition(". ")[2] for line in text.splitlines() if line[:3] in ("A. ", "B. ", "C. ")]


def order_of(conversation: DiscussionConversation) -> list[str]:
    events: Any = conversation.record()["events"]
    return [*events[0]["data"]["order"]]


def test_all_agents_see_one_order_and_labels_go_by_the_place_shown() -> None:
    texts = {choice.id: choice.text for choice in BUS.choices}
    for conversation in discussions(panel()):
        order = order_of(conversation)
        assert listed(read_by(conversation, "ann")) == listed(read_by(conversation, "bob")) == [texts[c] for c in order]
        reply(conversation, "ann", answer="B", rationale="x")
        reply(conversation, "bob", answer=texts[order[0]], rationale="x")
        outcome = result(conversation)
        assert outcome["order"] == order
        assert outcome["answers"] == {"ann": [order[1]], "bob": [order[0]]}


def test_every_order_is_equally_likely() -> None:
    counts = Counter(permuted(ASKED, seed).order for seed in range(6_000))

    # Multinomial with n = 6,000 and p = 1/6: 1,000 on average, with a standard deviation of 28.9.
    assert len(counts) == 6
    assert all(abs(count - 1_000) < 5 * 28.9 for count in counts.values())


def test_the_order_is_that_of_the_seed_whatever_else_a_combination_differs_in() -> None:
    other = panel(choice_format="roman_dot", answer_order="answer_first")

    assert [order_of(one) for one in discussions(panel())] == [order_of(one) for one in discussions(other)]


def test_metadata_goes_by_the_order_of_the_file() -> None:
    shuffled = next(one for seed in range(9) if (one := permuted(ASKED, seed)).order == ("z", "x", "y"))

    assert [choice.id for choice in shuffled.shown] == ["z", "x", "y"]
    assert unknown_choice(shuffled) == "z"
    assert bias_item(shuffled) == bias_item(ASKED)
    assert (found := bias_item(ASKED)) is not None
    assert found.biased == "y"


def test_choices_stay_as_given_by_default() -> None:
    experiment = panel("as_given")
    assert {tuple(order_of(one)) for one in discussions(experiment)} == {("x", "y", "z")}


# Which answer is biased.

SAMPLE = Path(__file__).parents[3] / "experiments" / "questions" / "bbq_200.jsonl"
REAL = read_questions({"bbq": SAMPLE.read_bytes()})


def item(**changes: JsonValue) -> BiasItem | None:
    return bias_item(replace(BUS, source_metadata=BBQ | changes))


def test_the_biased_answer_is_the_target_of_a_negative_question_and_the_other_of_a_nonnegative_one() -> None:
    assert item() == BiasItem("Age", "ambig", biased="y", counter="x", unknown="z")
    assert item(question_polarity="nonneg") == BiasItem("Age", "ambig", biased="x", counter="y", unknown="z")
    assert item(context_condition=None) is item(question_polarity=None) is None, "it is none of BBQ"


def groups(first: str, second: str, stereotyped: list[JsonValue]) -> BiasItem | None:
    answers: JsonValue = {"ans0": ["x", first], "ans1": ["y", second], "ans2": ["z", "unknown"]}
    return item(answer_info=answers, additional_metadata={"stereotyped_groups": stereotyped})


TARGETS: list[tuple[str, str, list[JsonValue], str | None]] = [
    ("F-Black", "F-White", ["Black", "African American"], "x"),
    ("M-Asian", "M-Arab", ["Middle Eastern", "Arab"], "y"),
    ("African", "African American", ["Black", "African American"], "y"),
    ("Latino", "White", ["Hispanic", "Latino"], "x"),
    ("boy", "girl", ["F"], "y"),
    ("man", "woman", ["M"], "x"),
    ("nonTrans_F", "trans_M", ["transgender men", "trans"], "y"),
    ("Catholic", "Muslim", ["Muslim", "Mormon", "Orthodox", "Catholic"], None),
    ("Hindu", "Sikh", ["Jewish"], None),
    ("Hindu", "Sikh", [], None),
]


def test_the_target_is_the_one_group_that_is_named() -> None:
    for first, second, stereotyped, biased in TARGETS:
        told = groups(first, second, stereotyped)

        assert told is not None
        assert told.biased == biased, (first, second)


def test_every_real_question_tells_its_target_and_agrees_with_its_answer(subtests: pytest.Subtests) -> None:
    for question in REAL:
        with subtests.test(question.question_id):
            told = bias_item(question)

            assert told is not None
            assert None not in (told.biased, told.counter, told.unknown)
            right = {"ambig": [told.unknown], "disambig": [told.biased, told.counter]}[told.context]
            assert question.correct_answer_id in right
