"""The form of a prompt that a model's template takes, and prompts in that form, whichever engine the template is of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mac_runner.backends.testing import (
    ChatShape,
    Conversation,
    Rendered,
    Renderer,
    Write,
    apart,
    ends_in_thought,
    merge_neighbours,
    merge_system,
    plain_text,
    probe_shape,
    renderer_of,
)
from mac_runner.errors import ConfigError, RequestRefusedError
from mac_runner.types import Message

Role = Literal["system", "user", "assistant"]
PLAIN = "### System\nrules\n\n### User\ngo\n\n### Assistant\n"
KEY = ("model_definitions", "m", "chat_template_kwargs")

messages_of_a_prompt = st.lists(
    st.builds(Message, role=st.sampled_from(["system", "user", "assistant"]), content=st.text(min_size=1, max_size=9))
)


def said(role: Role, content: str) -> Message:
    return Message(role=role, content=content)


TALK = (said("system", "rules"), said("user", "go"))


Template = Callable[[Sequence[Message]], str]


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


def silent(messages: Sequence[Message]) -> str:
    return ""


def closed(messages: Sequence[Message]) -> str:
    raise KeyError("tools")


@pytest.mark.parametrize(
    ("render", "shape"),
    [
        (tagged, ChatShape()),
        (without_system, ChatShape(has_system=False)),
        (deaf_to_system, ChatShape(has_system=False)),
        (alternating, ChatShape(must_alternate=True)),
    ],
)
def test_shape_is_found_by_trying(render: Template, shape: ChatShape) -> None:
    assert probe_shape(render) == shape


def test_template_that_takes_no_user_or_loses_what_one_says_has_no_shape() -> None:
    with pytest.raises(RequestRefusedError, match="leaves out what"):
        probe_shape(silent)
    with pytest.raises(RequestRefusedError, match="message: KeyError: 'tools'"):
        probe_shape(closed)


def test_system_words_go_before_the_users_first_or_become_them() -> None:
    prompt = (said("system", "rules"), said("assistant", "hm"), said("user", "ask"), said("user", "more"))

    assert merge_system(prompt) == (said("assistant", "hm"), said("user", "rules\n\nask"), said("user", "more"))
    assert merge_system((said("system", "rules"),)) == (said("user", "rules"),)


def test_neighbours_of_one_role_are_merged() -> None:
    prompt = (said("system", "a"), said("user", "b"), said("user", "c"), said("assistant", "d"), said("user", "e"))
    merged = (said("system", "a"), said("user", "b\n\nc"), said("assistant", "d"), said("user", "e"))

    assert merge_neighbours(prompt) == merged


@given(messages_of_a_prompt, st.booleans(), st.booleans())
def test_no_word_is_lost_and_the_template_takes_the_rest(
    prompt: list[Message], has_system: bool, must_alternate: bool
) -> None:
    fitted = ChatShape(has_system=has_system, must_alternate=must_alternate).fit(prompt)

    text = tagged(fitted)
    assert all(message.content in text for message in prompt)
    assert has_system or all(message.role != "system" for message in fitted)
    assert not must_alternate or all(one.role != other.role for one, other in pairwise(fitted))


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [("ask<think>", True), ("ask<think>\n\n", True), ("ask<think></think>", False), ("say <think> first. ask", False)],
)
def test_prompt_that_ends_with_the_tag_leaves_a_thought_open(prompt: str, is_open: bool) -> None:
    assert ends_in_thought(prompt) is is_open
    assert probe_shape(lambda messages: tagged(messages) + prompt).opens_thought is is_open


def letters(text: str, *, add_special_tokens: bool) -> list[int]:
    """A token for each character."""
    return [-1] * add_special_tokens + [ord(letter) for letter in text]


def writing(template: Template) -> Write:
    """A template that refuses whatever says `refuse me`, for all else as this one is."""

    def write(conversation: Conversation) -> Rendered:
        if any(message["content"] == "refuse me" for message in conversation):
            raise ValueError("refused")
        text = template([Message(role=each["role"], content=each["content"]) for each in conversation])  # type: ignore[arg-type]
        return Rendered(text, letters(text, add_special_tokens=False))

    return write


def renderer(template: Template | None) -> Renderer:
    return renderer_of(template and writing(template), letters, key=KEY)


def test_template_is_given_the_messages_and_writes_the_special_tokens_itself() -> None:
    rendered = renderer(tagged).render(TALK)

    assert rendered.text == "[system]rules[user]go"
    assert rendered.ids == [ord(letter) for letter in rendered.text]


def test_template_without_a_system_role_gets_the_rules_in_front_of_the_user() -> None:
    merging = renderer(without_system)

    assert merging.shape == ChatShape(has_system=False)
    assert merging.render(TALK).text == "[user]rules\n\ngo"


def test_base_model_gets_plain_paragraphs_and_its_special_tokens() -> None:
    rendered = renderer(None).render(TALK)

    assert rendered.text == plain_text(TALK) == PLAIN
    assert rendered.ids[0] == -1


@pytest.mark.parametrize("template", [tagged, None])
def test_half_a_surrogate_pair_is_sent_as_a_question_mark(template: Template | None) -> None:
    rendered = renderer(template).render([said("user", "a\ud800b")])

    assert "a?b" in rendered.text
    assert ord("\ud800") not in rendered.ids


def test_prompt_that_the_template_refuses_fails_its_conversation_alone() -> None:
    with pytest.raises(RequestRefusedError, match="prompt: ValueError: refused"):
        renderer(tagged).render([said("user", "refuse me")])


@pytest.mark.parametrize(("template", "told"), [(silent, "what a user"), (closed, "message: KeyError")])
def test_template_that_can_never_work_is_bad_input_at_the_start(template: Template, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"m\.chat_template_kwargs: .*{told}") as caught:
        renderer(template)

    assert caught.value.key == KEY


WORDS = st.lists(
    st.sampled_from(["We", "need", "the", "final", "analysis", "act:", "{}", "<b>", "\n"]), min_size=1
).map(" ".join)
CHANNELS = st.lists(
    st.tuples(st.sampled_from(["analysis", "commentary"]), WORDS.map("We {}".format)), min_size=1, max_size=3
)


@given(CHANNELS, WORDS, st.booleans())
def test_final_channel_of_gpt_oss_is_the_text_and_the_others_are_the_thought(
    thoughts: list[tuple[str, str]], answer: str, has_tags: bool
) -> None:
    thoughts = [("analysis", thoughts[0][1]), *thoughts[1:]]
    if has_tags:
        begun = "<|end|><|start|>assistant".join(f"<|channel|>{name}<|message|>{said}" for name, said in thoughts)
        text = f"{begun}<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{answer}<|return|>"
    else:
        begun = "assistant".join(f"{name}{said}" for name, said in thoughts)
        text = f"{begun}assistantfinal{answer}"
    thought = "\n\n".join(said.strip() for _, said in thoughts)

    assert apart(text) == (answer.lstrip(), thought)
    assert apart(f"\n{text}", "Given apart.") == (answer.lstrip(), f"Given apart.\n\n{thought}")
    assert apart(begun) == ("<think>", thought)


def test_text_that_only_speaks_of_channels_stays_as_it_is() -> None:
    for text in (
        "analysis: we need",
        "analysis of the assistant",
        "I say <|channel|>final<|message|>x",
        "final",
        "assistantfinalx",
    ):
        assert apart(text) == (text, None)
    assert apart("<|channel|>final<|message|>Aye.") == ("Aye.", None)
    assert apart("<|start|>assistant<|channel|>ana") == ("<think>", None)


@pytest.mark.parametrize(
    "text",
    [
        "We think.<|end|><|start|>assistant<|channel|>final<|message|>Aye.",
        "<|channel|>analysis<|message|>We think.<|channel|>final Aye.",
        "<|channel|>analysis We think.<|end|><|start|>assistant<|channel|>final<|message|>Aye.<|return|>",
        "<|channel|>analysis<|message|>We think.<|channel|>commentary<|channel|>final<|message|>Aye.<|end|>x",
    ],
)
def test_broken_channels_lose_neither_answer_nor_thought(text: str) -> None:
    assert apart(text) == ("Aye.", "We think.")
    assert (
        apart(text.replace("final<|message|>Aye.", "final <|constrain|>json").replace("final Aye.", "final"))[0] == ""
    )
    assert apart("<|start|>assistant<|message|>Aye.<|return|>") == ("Aye.", None)
