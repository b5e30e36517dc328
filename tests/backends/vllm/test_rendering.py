"""What vLLM's tokenizer is asked for a prompt."""

from __future__ import annotations

from mac_runner.backends.chat import ChatShape
from mac_runner.backends.vllm.backend import renderer_for
from mac_runner.types import JsonValue, Message

PROMPT = (Message(role="system", content="rules"), Message(role="user", content="ask"))


class Letters:
    """A tokenizer whose tokens are letters."""

    def __init__(self, template: str | None = "tags") -> None:
        self.chat_template = template

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        text = "".join(f"<{message['role']}>{message['content']}" for message in conversation)
        return f"{text}<assistant>{'<think>' if kwargs.get('enable_thinking') else ''}"

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*([0] if add_special_tokens else []), *map(ord, text)]


def test_prompt_is_rendered_by_the_models_template() -> None:
    rendered = renderer_for(Letters(), {}).render(PROMPT)

    assert rendered.text == "<system>rules<user>ask<assistant>"
    assert rendered.ids == list(map(ord, rendered.text))


def test_template_is_given_its_settings() -> None:
    assert renderer_for(Letters(), {"enable_thinking": True}).render(PROMPT).text.endswith("<assistant><think>")


def test_base_model_gets_plain_text_and_its_own_special_tokens() -> None:
    rendered = renderer_for(Letters(template=None), {}).render(PROMPT)

    assert rendered.text == "### System\nrules\n\n### User\nask\n\n### Assistant\n"
    assert rendered.ids[0] == 0


def test_template_given_by_the_experiment_makes_a_chat_model_of_a_base_model() -> None:
    renderer = renderer_for(Letters(template=None), {"chat_template": "tags"})

    assert renderer.shape == ChatShape()
    assert renderer.render(PROMPT).text == "<system>rules<user>ask<assistant>"
