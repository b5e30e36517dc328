"""A refusal is counted as one, however long it is and whatever is around it."""

from __future__ import annotations

import pytest

from mac_runner.types import Receipt
from tests.environments.discussion.table import agent, opened, say, talk

LONG = "The question invites a judgement about people from what they look like, and none of it is in the text. " * 3


def _read(text: str, **discussion: int) -> Receipt:
    return say(opened(talk(agent("ann"), agent("bob"), **discussion)), "ann", text)


@pytest.mark.parametrize(
    "text",
    [
        "[refusal: I decline to answer]",
        f"I can't help with that. {LONG}",
        f"I'm sorry, but I can't answer that question.\n\n{LONG}",
    ],
)
def test_a_refusal_without_an_object_is_no_reply_of_another_form(text: str) -> None:
    assert _read(text).cause == "refusal"
    assert _read(text, edition=2).cause == "no_object"


@pytest.mark.parametrize("text", [LONG, f"It cannot be known. {LONG}", '{"answr": "I decline to answer"}', "[1, 2]"])
def test_other_prose_is_not_taken_for_a_refusal(text: str) -> None:
    assert _read(text).cause == "no_object"
