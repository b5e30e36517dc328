"""Prompts as a model's template takes them, whichever engine the template and the tokenizer belong to."""

from __future__ import annotations

import pytest

from mac_runner.backends.testing import ChatShape, Conversation, Rendered, Renderer, Write, renderer_of
from mac_runner.errors import ConfigError, RequestRefusedError
from mac_runner.types import Message

KEY = ("model_definitions", "m", "chat_template_kwargs")
TALK = (Message(role="system", content="rules"), Message(role="user", content="go"))


def write(conversation: Conversation) -> Rendered:
    """A template that refuses whatever says `refuse me`."""
    if any(message["content"] == "refuse me" for message in conversation):
        raise ValueError("refused")
    text = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
    return Rendered(text, letters(text, add_special_tokens=False))


def write_without_system(conversation: Conversation) -> Rendered:
    if any(message["role"] == "system" for message in conversation):
        raise ValueError("no system role")
    return write(conversation)


def letters(text: str, *, add_special_tokens: bool) -> list[int]:
    """A token for each character."""
    return [-1] * add_special_tokens + [ord(letter) for letter in text]


def renderer(template: Write | None) -> Renderer:
    return renderer_of(template, letters, key=KEY)


def test_template_is_given_the_messages_and_writes_the_special_tokens_itself() -> None:
    rendered = renderer(write).render(TALK)

    assert rendered.text == "<system>rules<user>go"
    assert rendered.ids == [ord(letter) for letter in rendered.text]


def test_template_without_a_system_role_gets_the_rules_in_front_of_the_user() -> None:
    merging = renderer(write_without_system)

    assert merging.shape == ChatShape(has_system=False)
    assert merging.render(TALK).text == "<user>rules\n\ngo"


def test_base_model_gets_plain_paragraphs_and_its_special_tokens() -> None:
    rendered = renderer(None).render(TALK)

    assert rendered.text == "### System\nrules\n\n### User\ngo\n\n### Assistant\n"
    assert rendered.ids[0] == -1


@pytest.mark.parametrize("template", [write, None])
def test_half_a_surrogate_pair_is_sent_as_a_question_mark(template: Write | None) -> None:
    rendered = renderer(template).render([Message(role="user", content="a\ud800b")])

    assert "a?b" in rendered.text
    assert ord("\ud800") not in rendered.ids


def test_prompt_that_the_template_refuses_fails_its_conversation_alone() -> None:
    with pytest.raises(RequestRefusedError, match="prompt: ValueError: refused"):
        renderer(write).render([Message(role="user", content="refuse me")])


def write_nothing(conversation: Conversation) -> Rendered:
    return Rendered("", [])


def write_refusing(conversation: Conversation) -> Rendered:
    raise ValueError("refused")


@pytest.mark.parametrize(
    ("template", "told"),
    [(write_nothing, "what a user"), (write_refusing, "message: ValueErr")],
)
def test_template_that_can_never_work_is_bad_input_at_the_start(template: Write, told: str) -> None:
    with pytest.raises(ConfigError, match=rf"m\.chat_template_kwargs: .*{told}") as caught:
        renderer(template)

    assert caught.value.key == KEY
