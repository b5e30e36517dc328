"""From a reply to an answer: written by hand and read as a careful reader would, in marks, in objects, and cut off.

The corpora are `phrases`, `replies` and `unknowns`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import pytest

from mac_runner.environments.discussion.testing import (
    ROLES,
    Cause,
    Choice,
    ChoiceFormat,
    DiscussionRole,
    Found,
    Match,
    Matcher,
    Moment,
    Problem,
    Question,
    QuestionType,
    Said,
    read_fields,
    read_questions,
    unknown_choice,
)
from mac_runner.environments.testing import lowered, may_have_key, mended_object
from mac_runner.errors import ConfigError
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, Reply


def lines_of(corpus: str) -> Iterator[tuple[int, str]]:
    """The lines of a file that are no remarks, with their numbers."""
    text = Path(__file__).with_name(f"{corpus}.txt").read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if line and not line.startswith("#"):
            yield number, line


def choices_of(listed: str) -> tuple[Choice, ...]:
    """Choices as a corpus lists them: `A=one | B=two`."""
    pairs = (part.strip().partition("=") for part in listed.split(" | "))
    return tuple(Choice(id=choice_id, text=text) for choice_id, _, text in pairs)


def asking(question: str, choices: tuple[Choice, ...], **more: Any) -> Question:
    kind = QuestionType.MULTIPLE_CHOICE if choices else QuestionType.OPEN_ENDED
    return Question(question_id="q", question_type=kind, question=question, choices=choices, **more)


def matched(answer: str, asked: Question, **more: Any) -> Match | Problem:
    return Matcher(asked.choices, "letters_dot", threshold=88, margin=6, asked=asked.question, **more).match(answer)


def cause_of(found: object) -> Cause:
    """Why a reply cannot be used."""
    assert isinstance(found, Problem), found
    return found.cause


class Written(NamedTuple):
    line: int
    question: Question
    choice_format: ChoiceFormat
    verdict: str
    reply: str


def written() -> Iterator[Written]:
    """Whole replies, with the questions that they answer."""
    question, choice_format = asking("Which?", ()), "none"
    for number, line in lines_of("replies"):
        if line.startswith("choices: "):
            choice_format, _, listed = line.removeprefix("choices: ").partition(" ")
            question = asking("Which?", choices_of(listed))
        else:
            verdict, _, reply = line.partition(" |")
            reply = reply.removeprefix(" ").replace("\\n", "\n")
            if reply.startswith("="):
                reply = json.dumps({"rationale": "r", "answer": reply[1:]})
            yield Written(number, question, cast("ChoiceFormat", choice_format), verdict, reply)


def verdict_on(case: Written) -> str:
    matcher = Matcher(case.question.choices, case.choice_format, threshold=88, margin=6)
    moment = Moment(question=case.question, matcher=matcher, is_answer_first=False, is_last=False, majority=None)
    found = read_fields(Reply(text=case.reply), ("answer", "rationale"))
    said = found if isinstance(found, Problem) else ROLES["participant"].read(found, moment)
    return f"!{said.cause}" if isinstance(said, Problem) else str(said.answer)


def test_a_reply_is_read_as_a_careful_reader_would(subtests: pytest.Subtests) -> None:
    cases = list(written())
    assert len({(case.question.choices, case.reply) for case in cases}) == len(cases) >= 300
    for case in cases:
        with subtests.test(f"line {case.line}"):
            assert verdict_on(case) == case.verdict, case.reply


def phrases() -> Iterator[tuple[str, str, Question]]:
    """Answers in which a choice may be a part of a longer phrase: verdict, answer, question."""
    question = asking("", ())
    for _, line in lines_of("phrases"):
        key, _, rest = line.partition(": ")
        if key == "question":
            question = asking(rest, ())
        elif key == "choices":
            question = asking(question.question, choices_of(rest))
        else:
            verdict, _, answer = line.partition(" | ")
            yield verdict, answer, question


def test_a_choice_within_a_longer_phrase_is_asked_again_and_a_plain_one_is_read() -> None:
    cases, wrong = list(phrases()), []
    assert len({(answer, question.question) for _, answer, question in cases}) == len(cases) >= 60
    for verdict, answer, question in cases:
        found = matched(answer, question)
        said = f"! {found.cause}" if isinstance(found, Problem) else found.choice_id
        if said.partition(" ")[0] != verdict:
            wrong.append(f"{answer!r} is {said}, not {verdict}")
    assert not wrong, "\n".join(wrong)
    _, answer, question = next(phrases())
    assert cause_of(matched(answer, question)) is Cause.AMBIGUOUS


SIGNS = "+-−#%*/<>=≠^!?.'\"$€&@_~|°²³½👍ि()[]"
SAID = (
    *('{{"rationale": "r", "answer": {json}}}', "{text}", "Answer: {text}", "The answer is {text}.", "**{text}**"),
    *(
        "It is {text}, because it fits.",
        "{text} Because it fits",
        "<answer>{text}</answer>",
        "Final answer: {text}",
        "\\boxed{{{text}}}",
    ),
)


def signed(chance: Random) -> tuple[Choice, ...]:
    """Choices of the same letters and digits with other signs before and behind them; some are labels not shown."""
    base = chance.choice(["Q", "17", "x y", "true", "is it", "an", "O", "", "2", "B"])
    texts = {base} - {""}
    while len(texts) < 3:
        signs = [chance.choice(SIGNS) * chance.choice([1, 1, 2]) for _ in range(2)]
        texts.add(chance.choice([f"{base}{signs[0]}", f"{signs[0]}{base}", f"{signs[0]}{base}{signs[1]}"]))
    return tuple(Choice(id=f"c{number}", text=text) for number, text in enumerate(sorted(texts)))


def check_signs_tell_choices_apart(seed: int) -> bool:
    """Whether the choices of this seed are not refused."""
    choices = signed(Random(seed))
    try:
        (question,) = read_questions({"q": json.dumps(asking("Which?", choices).to_json()).encode()})
    except ConfigError:
        return False
    matcher = Matcher(choices, "none", threshold=88, margin=6)
    moment = Moment(question=question, matcher=matcher, is_answer_first=False, is_last=False, majority=None)
    for choice in choices:
        for form in SAID:
            reply = Reply(text=form.format(text=choice.text, json=json.dumps(choice.text)))
            found = read_fields(reply, ("answer", "rationale"), signs=matcher.signs)
            said = found if isinstance(found, Problem) else ROLES["participant"].read(found, moment)
            # The form that is asked for is always understood; in doubt about another its writer is asked again.
            if form is SAID[0] or isinstance(said, Said):
                assert (choices, reply.text, getattr(said, "answer", said)) == (choices, reply.text, choice.id)
    return True


def test_choices_that_differ_in_signs_alone_are_told_apart_and_never_taken_for_each_other() -> None:
    assert sum(map(check_signs_tell_choices_apart, range(40))) > 20
    choices = choices_of("c=C | p=C++ | m=-C")
    read = {"The answer is C++.": "p", "It is −C, because": "m", "**c**": "c", "(B) C++": "p", "c++!": "p"}
    assert {answer: getattr(matched(answer, asking("Which?", choices)), "choice_id", "") for answer in read} == read
    guesses = ("C#", "C plus plus", "negative C", "minus C", "2-C", "C/C++", "It is C plus plus, because")
    assert [answer for answer in guesses if isinstance(matched(answer, asking("Which?", choices)), Match)] == []


@pytest.mark.nightly
def test_many_choices_that_differ_in_signs_alone_are_told_apart() -> None:
    assert sum(map(check_signs_tell_choices_apart, range(40, 5_000))) > 2_500


WORDINGS = (
    *("Can't be determined", "Cannot be determined", "Not enough info", "Not enough information", "Unknown"),
    *("Not answerable", "Undetermined", "Can't answer", "Cannot answer", "Not known"),
)
"""How the release of BBQ words its third choice."""


def hearing(wording: str, **metadata: Any) -> Question:
    choices = choices_of(f"A=The 20-year-old | B={wording} | C=The grandmother")
    return asking("Who had trouble hearing?", choices, source_metadata=metadata or None)


def test_an_answer_is_read_alike_whatever_the_wording_of_the_unknown() -> None:
    cases, wrong = list(lines_of("unknowns")), []
    assert len({line.partition(" | ")[2] for _, line in cases}) == len(cases) >= 200
    for number, line in cases:
        verdict, _, answer = line.partition(" | ")
        for wording in WORDINGS:
            question = hearing(wording)
            found = matched(answer, question, unknown=unknown_choice(question))
            if isinstance(found, Problem):
                said = "!" if found.cause is Cause.REFUSAL else "-"
            else:
                said = "?" if found.choice_id == "B" else found.choice_id
            if said != verdict:
                wrong.append(f"line {number} against {wording!r}: {answer!r} is {said}, not {verdict}")
    assert not wrong, "\n".join([f"{len(wrong)} of {len(cases) * len(WORDINGS)}", *wrong[:60]])


def test_the_unknown_choice_is_the_one_that_the_benchmark_names() -> None:
    assert {wording: unknown_choice(hearing(wording)) for wording in WORDINGS} == dict.fromkeys(WORDINGS, "B")
    named = {"ans0": ["young", "nonOld"], "ans1": ["x", "old"], "ans2": ["Nobody can say", "unknown"]}
    assert unknown_choice(hearing("Unknown", answer_info=named)) == "C"
    assert unknown_choice(hearing("The nurse")) is None


# Answers in tags, boxes and nested objects.

CHOICES = (Choice(id="A", text="The doctor"), Choice(id="B", text="The nurse"), Choice(id="C", text="Unknown"))


def said_by(role: DiscussionRole, text: str, choices: tuple[Choice, ...] = CHOICES) -> Said | Problem:
    matcher = Matcher(choices, "letters_dot", threshold=88, margin=6) if choices else None
    moment = Moment(
        question=asking("Who?", choices), matcher=matcher, is_answer_first=False, is_last=False, majority="A"
    )
    names = [field.name for field in ROLES[role].fields(moment)]
    found = read_fields(Reply(text=text), sorted(names, key=lambda name: name != ROLES[role].decisive))
    return found if isinstance(found, Problem) else ROLES[role].read(found, moment)


def test_number_or_letter_before_a_reason_is_never_taken_for_the_label_of_another_choice() -> None:
    wrong = []
    for texts in (*permutations("2413"), *permutations("BAC")):
        choices = tuple(Choice(id=text, text=text) for text in texts)
        for text, form, listed in product(texts, SAID, ("letters_dot", "numerals_dot", "none")):
            matcher = Matcher(choices, listed, threshold=88, margin=6)  # type: ignore[arg-type]
            found = matcher.match(form.format(text=text, json=""))
            if isinstance(found, Match) and found.choice_id != text:
                wrong.append((texts, text, form, listed))
    assert wrong == []


def test_answers_in_marks_are_read_alike_for_every_role() -> None:
    cases: dict[tuple[DiscussionRole, str], str | None] = {
        ("judge", "<verdict>B</verdict>"): "B",
        ("judge", "\\boxed{B}"): "B",
        ("judge", '{"final_verdict": "B"}'): "B",
        ("judge", "<verdict>continue</verdict>"): None,
        ("devils_advocate", "<argument>She was alone.</argument><alternative>B</alternative>"): "B",
        ("devils_advocate", '{"argument": "She was alone.", "alternative": {"choice": "B"}}'): "B",
    }
    for (role, text), answer in cases.items():
        said = said_by(role, text)
        assert isinstance(said, Said), said
        assert said.answer == answer, text
    # What stands around a mark is the speech, and the words of a moderator are left as they are.
    said = said_by("participant", "The doctor had left.\n<answer>B</answer>")
    assert isinstance(said, Said)
    assert (said.answer, said.text) == ("B", "The doctor had left.")
    words = "Some say <answer>B</answer> and \\boxed{A}."
    said = said_by("moderator", words)
    assert isinstance(said, Said)
    assert said.text == words


def test_marks_that_differ_are_asked_again_without_matching_each() -> None:
    assert cause_of(said_by("judge", "<verdict>B</verdict><verdict>continue</verdict>")) is Cause.AMBIGUOUS
    many = "".join(f"<answer>{number}B</answer>" for number in range(4_000))
    assert cause_of(said_by("participant", many)) is Cause.AMBIGUOUS
    agreed = said_by("participant", "\\boxed{a bridge} <answer>A bridge.</answer>", choices=())
    assert isinstance(agreed, Said)
    assert agreed.answer == "a bridge"
    assert cause_of(said_by("participant", "\\boxed{a bridge} <answer>A ferry</answer>", choices=())) is Cause.AMBIGUOUS


# What the end of a reply says about the fields in it.


def read(text: str, *, is_cut: bool = False) -> Found | Problem:
    reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
    return read_fields(Reply(text=text, finish_reason=reason), ("answer", "rationale"))


def test_an_answer_that_was_cut_off_is_none_and_what_was_cut_off_behind_it_does_no_harm() -> None:
    found = read('{"rationale": "r", "answer": "The grand', is_cut=True)
    assert isinstance(found, Problem)
    assert (found.cause, "in its answer" in found.reason) == (Cause.CUT_OFF, True)
    for mark in ('{"response": {"answer": "', '{"answer": {"choice": "', '{"final_answer": "', "<answer>"):
        assert cause_of(read(f"{mark}The nur", is_cut=True)) is Cause.CUT_OFF, mark
    for text in ('{"answer": "B", "rationale": "because', '{"answer": "B", "rationale": "r"}', "Answer: B"):
        found = read(text, is_cut=True)
        assert isinstance(found, Found)
        assert found.get("answer") == "B", text
    assert cause_of(read("<think>first of all", is_cut=True)) is Cause.CUT_OFF_THOUGHT


def test_an_object_from_end_to_end_is_read_before_anything_in_it_is_taken_for_a_thought() -> None:
    fields = {"rationale": "I <think>so</think>.", "answer": "B"}
    found = read(json.dumps(fields))

    assert isinstance(found, Found)
    assert found.fields == fields


def test_a_hostile_reply_is_read_at_a_bounded_cost_and_not_beyond_the_bound_of_a_reply() -> None:
    for piece in ("{", "[", '{"a":', "```", '"', "Answer:", "\\"):
        assert isinstance(read(piece * (100_000 // len(piece))), Found | Problem)
    assert read(" " * REPLY_CHARS_MAX + '{"answer": "B"}') == Problem(Cause.EMPTY, "it was empty")


def test_text_without_the_letters_of_a_key_mends_to_no_object_with_it() -> None:
    """What is not mended for lack of a name would not have had it."""
    chance = Random(3)
    pieces = [*"{}[]\"':,\n ", "answer", "Answer", "ANSWER", "rationale", "to the team"]
    pieces += ["to-the_team", "B", "true", "ß", "\\u0061nswer", "\\n", "//", "#", "an", "swer", "“", "”", "```", "1.5"]
    names, skipped = ("answer", "rationale", "to_the_team"), 0
    for _ in range(1_500):
        text = "{" + "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 14)))
        if not may_have_key(text, names):
            skipped += 1
            assert not lowered(mended_object(text)).keys() & set(names), text
    assert skipped > 200
