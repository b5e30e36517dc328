"""Prompts as a model's template takes them, whichever engine the template and the tokenizer belong to."""

from __future__ import annotations

import pytest

from mac_runner.backends.chat import ChatShape
from mac_runner.backends.rendering import Write, renderer_of
from mac_runner.errors import RequestRefusedError
from mac_runner.types import Message

TALK = (Message(role="system", content="rules"), Message(role="user", content="go"))


def write(conversation: list[dict[str, str]]) -> str:
    """A template that refuses whatever says `refuse me`."""
    if any(message["content"] == "refuse me" for message in conversation):
        raise ValueError("refused")
    return "".join(f"<{message['role']}>{message['content']}" for message in conversation)


def write_without_system(conversation: list[dict[str, str]]) -> str:
    if any(message["role"] == "system" for message in conversation):
        raise ValueError("no system role")
    return write(conversation)


def letters(text: str, *, add_special_tokens: bool) -> list[int]:
    """A token for each character."""
    return [-1] * add_special_tokens + [ord(letter) for letter in text]


def test_template_is_given_the_messages_and_writes_the_special_tokens_itself() -> None:
    rendered = renderer_of(write, letters).render(TALK)

    assert rendered.text == "<system>rules<user>go"
    assert rendered.ids == [ord(letter) for letter in rendered.text]


def test_template_without_a_system_role_gets_the_rules_in_front_of_the_user() -> None:
    renderer = renderer_of(write_without_system, letters)

    assert renderer.shape == ChatShape(has_system=False)
    assert renderer.render(TALK).text == "<user>rules\n\ngo"


def test_base_model_gets_plain_paragraphs_and_its_special_tokens() -> None:
    rendered = renderer_of(None, letters).render(TALK)

    assert rendered.text == "### System\nrules\n\n### User\ngo\n\n### Assistant\n"
    assert rendered.ids[0] == -1


@pytest.mark.parametrize("template", [write, None])
def test_half_a_surrogate_pair_is_sent_as_a_question_mark(template: Write | None) -> None:
    rendered = renderer_of(template, letters).render([Message(role="user", content="a\ud800b")])

    assert "a?b" in rendered.text
    assert ord("\ud800") not in rendered.ids


def test_prompt_that_the_template_refuses_fails_its_conversation_alone() -> None:
    with pytest.raises(RequestRefusedError, match="the model's chat template refuses the prompt: ValueError: refused"):
        renderer_of(write, letters).render([Message(role="user", content="refuse me")])
