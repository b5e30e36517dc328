"""Prompts as a model's template takes them; the tokenizer is a stand-in, for the engine's needs its packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from mac_runner.backends.nano.rendering import renderer_of
from mac_runner.errors import RequestRefusedError
from mac_runner.types import Message

TALK = (Message(role="system", content="rules"), Message(role="user", content="go"))


class Letters:
    """A token for each character. Refuses system messages, and whatever says `refuse me`."""

    def __init__(self, *, has_chat_template: bool = True, has_system: bool = True) -> None:
        self.chat_template = "as below" if has_chat_template else None
        self._has_system = has_system

    def chat_text(self, messages: Sequence[Mapping[str, object]], **variables: object) -> str:
        if not self._has_system and any(message["role"] == "system" for message in messages):
            raise ValueError("no system role")
        if any(message["content"] == "refuse me" for message in messages):
            raise ValueError("refused")
        said = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return said + "".join(f"[{name}={value}]" for name, value in variables.items())

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [-1] * add_special_tokens + [ord(letter) for letter in text]


def test_template_is_given_the_messages_and_its_switches() -> None:
    rendered = renderer_of(Letters(), {"enable_thinking": False}).render(TALK)

    assert rendered.text == "<system>rules<user>go[enable_thinking=False]"
    assert rendered.ids == [ord(letter) for letter in rendered.text]


def test_template_without_a_system_role_gets_the_rules_in_front_of_the_user() -> None:
    assert renderer_of(Letters(has_system=False), {}).render(TALK).text == "<user>rules\n\ngo"


def test_base_model_gets_plain_paragraphs_and_its_special_tokens() -> None:
    rendered = renderer_of(Letters(has_chat_template=False), {}).render(TALK)

    assert rendered.text.startswith("### System\nrules\n\n### User\ngo")
    assert rendered.ids[0] == -1


def test_half_a_surrogate_pair_is_sent_as_a_question_mark() -> None:
    assert renderer_of(Letters(), {}).render([Message(role="user", content="a\ud800b")]).text == "<user>a?b"


def test_prompt_that_the_template_refuses_fails_its_conversation_alone() -> None:
    with pytest.raises(RequestRefusedError, match="the model's chat template refuses the prompt"):
        renderer_of(Letters(), {}).render([Message(role="user", content="refuse me")])
