"""What the end of a reply says about the fields in it."""

from __future__ import annotations

import json
from random import Random

from mac_runner.environments.discussion.testing import Cause, Found, Problem, read_fields
from mac_runner.environments.testing import lowered, may_have_key, mended_object
from mac_runner.types import REPLY_CHARS_MAX, FinishReason, Reply


def read(text: str, *, is_cut: bool = False) -> Found | Problem:
    reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
    return read_fields(Reply(text=text, finish_reason=reason), ("answer", "rationale"))


def test_an_answer_that_was_cut_off_is_no_answer() -> None:
    found = read('{"rationale": "r", "answer": "The grand', is_cut=True)

    assert isinstance(found, Problem)
    assert (found.cause, "in its answer" in found.reason) == (Cause.CUT_OFF, True)


def test_what_was_cut_off_behind_the_answer_does_no_harm() -> None:
    for text in ('{"answer": "B", "rationale": "because', '{"answer": "B", "rationale": "r"}', "Answer: B"):
        found = read(text, is_cut=True)

        assert isinstance(found, Found)
        assert found.get("answer") == "B", text


def test_thoughts_that_were_cut_off_are_told_as_such() -> None:
    found = read("<think>first of all", is_cut=True)

    assert isinstance(found, Problem)
    assert found.cause is Cause.CUT_OFF_THOUGHT


def test_an_object_from_end_to_end_is_read_before_anything_in_it_is_taken_for_a_thought() -> None:
    fields = {"rationale": "I <think>so</think>.", "answer": "B"}
    found = read(json.dumps(fields))

    assert isinstance(found, Found)
    assert found.fields == fields


def test_a_hostile_reply_is_read_at_a_bounded_cost() -> None:
    for piece in ("{", "[", '{"a":', "```", '"', "Answer:", "\\"):
        assert isinstance(read(piece * (100_000 // len(piece))), Found | Problem)


def test_what_stands_beyond_the_bound_of_a_reply_is_not_read() -> None:
    found = read(" " * REPLY_CHARS_MAX + '{"answer": "B"}')

    assert found == Problem(Cause.EMPTY, "it was empty")


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
