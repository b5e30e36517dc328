"""What vLLM's tokenizer is asked for a prompt."""

from __future__ import annotations

from typing import Any

import pytest

from mac_runner.backends.testing import ChatShape, Renderer
from mac_runner.backends.vllm.testing import Tokenizer, is_free_to_think, renderer_for, renderers_for
from mac_runner.errors import ConfigError
from mac_runner.types import JsonValue, Message, Prompt

ASK = Message(role="user", content="ask")
PROMPT = (Message(role="system", content="rules"), ASK)
SECTION = ("model_definitions", "m", "vllm_config")


class Code:
    """A tokenizer whose tokens are letters and whose template is code. An experiment may bring another one."""

    template: str | None = "code"

    def apply_chat_template(
        self, messages: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str | list[int]:
        assert add_generation_prompt
        template = kwargs.get("chat_template", self.template)
        if template is None:
            raise ValueError("tokenizer.chat_template is not set")
        if template == "{{ broken":
            raise SyntaxError("unexpected end of template")
        if template == "deaf":
            return "<user>"
        text = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        text = f"{text}<assistant>{'<think>' if kwargs.get('enable_thinking') else ''}"
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [*([0] if add_special_tokens else []), *map(ord, text)]

    def decode(self, ids: list[int], /) -> str:
        return "".join(map(chr, ids))


class Letters(Code):
    """One whose template is a text, if it has any."""

    def __init__(self, template: str | None = "tags") -> None:
        self.chat_template = self.template = template


class HiddenCode(Code):
    """One whose template is code, and that says it has none."""

    chat_template = None


class Mistral(Code):
    """One that does not know its special tokens when they stand in a text: their numbers are others'."""

    def apply_chat_template(
        self, messages: list[dict[str, str]], /, *, tokenize: bool, add_generation_prompt: bool, **kwargs: JsonValue
    ) -> str | list[int]:
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        ids = [-ord(char) if char in "[]" else ord(char) for char in text]
        return ids if tokenize else text

    def decode(self, ids: list[int], /) -> str:
        return "".join(chr(abs(token)) for token in ids)


class Unwritable(Letters):
    def apply_chat_template(self, messages: list[dict[str, str]], /, **kwargs: object) -> str:
        raise LookupError("no such role")


class Parser:
    """Finds a thought open behind an opening bracket."""

    def is_reasoning_end(self, input_ids: object) -> bool:
        return input_ids != [ord("<")]


def renderer(tokenizer: Tokenizer, **settings: JsonValue) -> Renderer:
    return renderer_for(tokenizer, settings, section=SECTION)


@pytest.mark.parametrize("tokenizer", [Letters(), Code(), HiddenCode()])
def test_prompt_is_rendered_by_the_models_template_whether_text_or_code(tokenizer: Tokenizer) -> None:
    rendered = renderer(tokenizer).render(PROMPT)

    assert rendered.text == "<system>rules<user>ask<assistant>"
    assert rendered.ids == list(map(ord, rendered.text))


def test_template_is_switched_by_its_settings_and_as_each_agent_asks() -> None:
    settings: dict[str, JsonValue] = {"enable_thinking": True}
    made = renderers_for(Letters(), settings, section=SECTION, thinking={False: "quick"})

    assert renderer(Letters(), **settings).shape == ChatShape(opens_thought=True)
    ends = {thinking: each.render((ASK,)).text.removeprefix("<user>ask") for thinking, each in made.items()}
    assert ends == {None: "<assistant><think>", True: "<assistant><think>", False: "<assistant>"}
    assert list(renderers_for(Letters(), {}, section=SECTION, thinking={})) == [None]


def test_thinking_is_refused_where_the_template_has_no_switch() -> None:
    with pytest.raises(ConfigError, match=r"vllm_config\.model: .* 'enable_thinking', .*'deep'"):
        renderers_for(Mistral(), {}, section=SECTION, thinking={True: "deep"})


def test_tokens_that_no_text_stands_for_are_taken_from_the_template() -> None:
    rendered = renderer(Mistral()).render((ASK,))

    assert rendered.text == "[user]ask"
    assert rendered.ids == [-ord("["), *map(ord, "user"), -ord("]"), *map(ord, "ask")]


def test_base_model_gets_plain_text_unless_the_experiment_brings_a_template() -> None:
    bare, given = renderer(Letters(template=None)), renderer(Letters(template=None), chat_template="tags")

    assert bare.render(PROMPT).text == "### System\nrules\n\n### User\nask\n\n### Assistant\n"
    assert bare.render(PROMPT).ids[0] == 0  # Its own special token.
    assert given.shape == ChatShape()
    assert given.render(PROMPT).text == "<system>rules<user>ask<assistant>"


@pytest.mark.parametrize("template", ["{{ broken", "deaf"])
@pytest.mark.parametrize("tokenizer", [Letters(), HiddenCode()])
def test_settings_no_prompt_can_be_written_with_are_bad_input(tokenizer: Tokenizer, template: str) -> None:
    with pytest.raises(ConfigError, match=r"vllm_config\.chat_template_kwargs: ") as caught:
        renderer(tokenizer, chat_template=template)

    assert caught.value.key == (*SECTION, "chat_template_kwargs")
    with pytest.raises(ConfigError, match="a user's message") as told:
        renderer(Unwritable())
    assert told.value.key == (*SECTION, "model")  # Its own template is the model's fault.


@pytest.mark.parametrize(
    ("form", "ids", "parser", "is_free"),
    [
        ({}, "<", None, True),
        ({"choices": ("a", "b")}, "<", None, False),
        ({"schema": {"type": "object"}}, "<", None, False),
        ({"schema": {"type": "object"}}, "<", Parser(), True),
        ({"choices": ("a",)}, "a", Parser(), False),  # It finds no open thought.
    ],
)
def test_form_leaves_room_for_a_thought_only_where_a_parser_finds_its_end(
    form: dict[str, Any], ids: str, parser: Parser | None, is_free: bool
) -> None:
    assert is_free_to_think(Prompt(messages=(ASK,), **form), [*map(ord, ids)], parser) is is_free
