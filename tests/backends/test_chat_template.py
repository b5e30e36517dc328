from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.backends.testing import (
    ChatShape,
    ends_in_thought,
    merge_neighbours,
    merge_system,
    plain_text,
    probe_shape,
)
from mac_runner.errors import RequestRefusedError
from mac_runner.types import Message

Role = Literal["system", "user", "assistant"]

messages_of_a_prompt = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=st.text(min_size=1, max_size=9))
)


def said(role: Role, content: str) -> Message:
    return Message(role=role, content=content)


def tagged(messages: Sequence[Message]) -> str:
    return "".join(f"[{message.role}]{message.content}" for message in messages)


def without_system(messages: Sequence[Message]) -> str:
    if any(message.role == "system" for message in messages):
        raise LookupError("System role not supported")
    return tagged(messages)


def deaf_to_system(messages: Sequence[Message]) -> str:
    return tagged([message for message in messages if message.role != "system"])


def alternating(messages: Sequence[Message]) -> str:
    spoken = [message.role for message in messages if message.role != "system"]
    if any(one == other for one, other in pairwise(spoken)):
        raise ValueError("roles must alternate")
    return tagged(messages)


@pytest.mark.parametrize(
    ("render", "shape"),
    [
        (tagged, ChatShape()),
        (without_system, ChatShape(has_system=False)),
        (deaf_to_system, ChatShape(has_system=False)),
        (alternating, ChatShape(must_alternate=True)),
    ],
)
def test_shape_is_found_by_trying(render: object, shape: ChatShape) -> None:
    assert callable(render)
    assert probe_shape(render) == shape


def test_system_words_go_before_the_users_first() -> None:
    prompt = (said("system", "rules"), said("assistant", "hm"), said("user", "ask"), said("user", "more"))

    assert merge_system(prompt) == (said("assistant", "hm"), said("user", "rules\n\nask"), said("user", "more"))


def test_system_words_without_a_user_become_the_users() -> None:
    assert merge_system((said("system", "rules"),)) == (said("user", "rules"),)


def test_neighbours_of_one_role_are_merged() -> None:
    prompt = (said("system", "a"), said("user", "b"), said("user", "c"), said("assistant", "d"), said("user", "e"))

    assert merge_neighbours(prompt) == (
        said("system", "a"),
        said("user", "b\n\nc"),
        said("assistant", "d"),
        said("user", "e"),
    )


@given(messages_of_a_prompt, st.booleans(), st.booleans())
def test_no_word_is_lost_and_the_template_takes_the_rest(
    prompt: list[Message], has_system: bool, must_alternate: bool
) -> None:
    fitted = ChatShape(has_system=has_system, must_alternate=must_alternate).fit(prompt)

    text = tagged(fitted)
    assert all(message.content in text for message in prompt)
    assert has_system or all(message.role != "system" for message in fitted)
    assert not must_alternate or all(one.role != other.role for one, other in pairwise(fitted))


def test_plain_text_ends_where_the_reply_begins() -> None:
    text = plain_text((said("system", "rules"), said("user", "ask")))

    assert text == "### System\nrules\n\n### User\nask\n\n### Assistant\n"


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [("ask<think>", True), ("ask<think>\n\n", True), ("ask<think></think>", False), ("say <think> first. ask", False)],
)
def test_prompt_that_ends_with_the_tag_leaves_a_thought_open(prompt: str, is_open: bool) -> None:
    assert ends_in_thought(prompt) is is_open
    assert probe_shape(lambda messages: tagged(messages) + prompt).opens_thought is is_open


def test_template_that_takes_no_user_or_loses_what_one_says_has_no_shape() -> None:
    def silent(messages: Sequence[Message]) -> str:
        return ""

    def closed(messages: Sequence[Message]) -> str:
        raise KeyError("tools")

    with pytest.raises(RequestRefusedError, match="leaves out what"):
        probe_shape(silent)
    with pytest.raises(RequestRefusedError, match="message: KeyError: 'tools'"):
        probe_shape(closed)
