from __future__ import annotations

import pytest

from mac_runner.backends.chat import ChatShape
from mac_runner.backends.vllm.rendering import renderer_of
from mac_runner.errors import RequestRefusedError
from mac_runner.types import JsonValue, Message

PROMPT = (Message(role="system", content="rules"), Message(role="user", content="ask"))


class Letters:
    """A tokenizer whose tokens are letters, and whose template refuses the roles it is told to refuse."""

    def __init__(self, template: str | None = "tags", refused: frozenset[str] = frozenset()) -> None:
        self.chat_template = template
        self._refused = refused

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        if any(message["role"] in self._refused for message in conversation):
            raise ValueError("this role is not supported")
        text = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
        return f"{text}<assistant>{'<think>' if kwargs.get('enable_thinking') else ''}"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*([0] if add_special_tokens else []), *map(ord, text)]


def test_prompt_is_rendered_by_the_models_template_which_writes_the_special_tokens() -> None:
    rendered = renderer_of(Letters(), {}).render(PROMPT)

    assert rendered.text == "<system>rules<user>ask<assistant>"
    assert rendered.ids == list(map(ord, rendered.text))


def test_template_is_given_its_settings() -> None:
    assert renderer_of(Letters(), {"enable_thinking": True}).render(PROMPT).text.endswith("<assistant><think>")


def test_system_role_that_the_template_lacks_is_rewritten() -> None:
    renderer = renderer_of(Letters(refused=frozenset({"system"})), {})

    assert renderer.shape == ChatShape(has_system=False)
    assert renderer.render(PROMPT).text == "<user>rules\n\nask<assistant>"


def test_base_model_gets_plain_text_and_its_own_special_tokens() -> None:
    rendered = renderer_of(Letters(template=None), {}).render(PROMPT)

    assert rendered.text == "### System\nrules\n\n### User\nask\n\n### Assistant\n"
    assert rendered.ids[0] == 0


def test_template_given_by_the_experiment_makes_a_chat_model_of_a_base_model() -> None:
    assert renderer_of(Letters(template=None), {"chat_template": "tags"}).shape == ChatShape()


def test_prompt_that_the_template_refuses_all_the_same_fails_its_conversation() -> None:
    renderer = renderer_of(Letters(refused=frozenset({"assistant"})), {})

    with pytest.raises(RequestRefusedError, match="refuses the prompt: ValueError: this role is not supported"):
        renderer.render((*PROMPT, Message(role="assistant", content="hm")))
